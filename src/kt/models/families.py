"""The model families that kt implements: model_type -> how its config becomes a ModelSpec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kt.errors import ModelError
from kt.models import llama, qwen3_moe
from kt.models.fields import Fields
from kt.models.spec import MAX_EXPERTS, MAX_GROUPS, ExpertSpec, ModelSpec, RouterSpec
from kt.models.tensors import check_tensors
from kt.weights.checkpoint import Checkpoint

FAMILIES: Final[dict[str, Callable[[Fields, Checkpoint], ModelSpec]]] = {
    "llama": llama.spec,
    "qwen3_moe": qwen3_moe.spec,
}


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What `checkpoint` computes. Its tensors are checked against that: none missing, none unused,
    right shapes.

    Raises ModelError for a family, a field or a tensor that kt does not implement.
    """
    model_type = checkpoint.config.get("model_type")
    build = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if build is None:
        raise ModelError(
            f"{checkpoint.path}: model_type {model_type!r} is not supported "
            f"(supported: {', '.join(FAMILIES)})",
            hint="This version of kt cannot run it; `kt models` lists models that it can run.",
        )
    fields = Fields(checkpoint.config)
    result = build(fields, checkpoint)
    fields.get("quantization_config")  # opening the checkpoint has dealt with these two
    fields.get("compression_config")
    fields.finish()
    for layer in result.layers:
        if isinstance(layer.mlp, ExpertSpec):
            _check_router(layer.mlp.router)
    check_tensors(result, checkpoint)
    return result


def _check_router(router: RouterSpec) -> None:
    for name, value, most in (
        ("num_experts", router.n_experts, MAX_EXPERTS),
        ("n_group", router.n_groups, MAX_GROUPS),
        ("num_experts_per_tok", router.top_k, router.n_experts),
    ):
        if value > most:
            raise ModelError(f"config: {name} = {value} is not supported: at most {most}")
