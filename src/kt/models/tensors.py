"""The tensors that a ModelSpec needs, and whether a checkpoint has exactly those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kt.errors import ModelError
from kt.models.spec import ExpertSpec, LayerSpec, ModelSpec
from kt.weights.checkpoint import Checkpoint

Shape = tuple[int, ...]
Part = Literal["gate", "up", "down"]
PARTS: tuple[Part, ...] = ("gate", "up", "down")


def expected_tensors(spec: ModelSpec) -> dict[str, Shape]:
    """role -> shape of every tensor but the experts'."""
    result: dict[str, Shape] = {"embed": (spec.vocab, spec.hidden), "final_norm": (spec.hidden,)}
    if not spec.tied_embeddings:
        result["lm_head"] = (spec.vocab, spec.hidden)
    for index, layer in enumerate(spec.layers):
        for role, shape in _layer(layer, spec.hidden):
            result[f"layers.{index}.{role}"] = shape
    return result


def _layer(layer: LayerSpec, hidden: int) -> Iterator[tuple[str, Shape]]:
    attention = layer.attention
    wide = attention.n_heads * attention.head_dim
    narrow = attention.n_kv_heads * attention.head_dim
    yield "attn_norm", (hidden,)
    yield "mlp_norm", (hidden,)
    for role, rows in (("q", wide), ("k", narrow), ("v", narrow)):
        yield role, (rows, hidden)
        if attention.qkv_bias:
            yield f"{role}.bias", (rows,)
    yield "o", (hidden, wide)
    if attention.output_bias:
        yield "o.bias", (hidden,)
    if attention.qk_norm:
        yield "q_norm", (attention.head_dim,)
        yield "k_norm", (attention.head_dim,)
    if isinstance(layer.mlp, ExpertSpec):
        yield "router", (layer.mlp.router.n_experts, hidden)
        return
    for part in PARTS:
        yield part, _part_shape(part, layer.mlp.intermediate, hidden)


def _part_shape(part: Part, intermediate: int, hidden: int) -> Shape:
    return (hidden, intermediate) if part == "down" else (intermediate, hidden)


def check_tensors(spec: ModelSpec, checkpoint: Checkpoint) -> None:
    """Raises one ModelError that lists every tensor missing, unused or of the wrong shape."""
    expected = expected_tensors(spec)
    faults = [f"{role} is missing" for role in expected if not checkpoint.has(role)]
    faults += [
        f"{checkpoint.tensor(role).name} is not used by this config"
        for role in sorted(checkpoint.roles - expected.keys() - {"rope_factors"})
    ]
    for role, shape in expected.items():
        if checkpoint.has(role) and checkpoint.tensor(role).shape != shape:
            tensor = checkpoint.tensor(role)
            faults.append(
                f"{tensor.name} has shape {list(tensor.shape)}, the config says {list(shape)}"
            )
    faults += _expert_faults(spec, checkpoint)
    if faults:
        shown = faults[:30] + ([f"and {len(faults) - 30} more"] if len(faults) > 30 else [])
        raise ModelError(
            f"{checkpoint.path}: the tensors do not fit the config:\n  " + "\n  ".join(shown),
            hint="Config and weights are of different models, or the checkpoint is not complete.",
        )


def _expert_faults(spec: ModelSpec, checkpoint: Checkpoint) -> list[str]:
    sparse = {
        i: layer.mlp for i, layer in enumerate(spec.layers) if isinstance(layer.mlp, ExpertSpec)
    }
    faults = [
        f"experts of layer {i} are missing"
        for i in sorted(sparse.keys() - checkpoint.expert_layers)
    ]
    faults += [
        f"experts of layer {i} are not used by this config"
        for i in sorted(checkpoint.expert_layers - sparse.keys())
    ]
    for index in sorted(sparse.keys() & checkpoint.expert_layers):
        for part in PARTS:
            faults += _part_faults(sparse[index], spec.hidden, checkpoint, index, part)
    return faults


def _part_faults(
    experts: ExpertSpec, hidden: int, checkpoint: Checkpoint, layer: int, part: Part
) -> list[str]:
    try:
        matrices = checkpoint.experts(layer, part)
    except ModelError as error:
        return [error.message]
    if len(matrices) != experts.router.n_experts:
        wanted = experts.router.n_experts
        return [f"experts of layer {layer}: {len(matrices)} {part} matrices, config says {wanted}"]
    shape = _part_shape(part, experts.mlp.intermediate, hidden)
    return [
        f"{matrix.name} has shape {list(matrix.shape)}, the config says {list(shape)}"
        for matrix in matrices
        if matrix.shape != shape
    ]
