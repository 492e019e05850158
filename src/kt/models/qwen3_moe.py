"""Qwen3-MoE: QK-norm per head, softmax router over all experts, some layers may be dense."""

from __future__ import annotations

from kt.models.decoder import attention_spec, model_spec, n_layers
from kt.models.fields import Fields
from kt.models.spec import ExpertSpec, LayerSpec, MlpSpec, ModelSpec, RouterSpec
from kt.weights.checkpoint import Checkpoint


def spec(fields: Fields, checkpoint: Checkpoint) -> ModelSpec:
    """The ModelSpec of a qwen3_moe config. Raises ModelError."""
    fields.expect("hidden_act", "silu")
    attention = attention_spec(fields, checkpoint, qk_norm=True, window=_window(fields))
    experts = _experts(fields)
    dense_width = fields.get("intermediate_size")
    layers = tuple(
        LayerSpec(
            attention,
            experts if sparse else MlpSpec(fields.integer("intermediate_size", dense_width)),
        )
        for sparse in _sparse_layers(fields)
    )
    return model_spec("qwen3_moe", fields, checkpoint, layers)


def _window(fields: Fields) -> int:
    """Keys that a token sees, 0 for all. sliding_window counts only where use_sliding_window is
    set.
    """
    size, layers = fields.get("sliding_window"), fields.get("max_window_layers")
    if not fields.flag("use_sliding_window") or size is None:
        return 0
    if layers is not None:
        raise fields.refuse("max_window_layers", "a window is supported on all layers alike")
    return fields.integer("sliding_window")


def _experts(fields: Fields) -> ExpertSpec:
    count = fields.integer("num_experts", fields.get("num_local_experts"))
    top_k = fields.integer("num_experts_per_tok")
    if top_k > count:
        raise fields.refuse("num_experts_per_tok", f"there are {count} experts")
    router = RouterSpec(count, top_k, normalise=fields.flag("norm_topk_prob"))
    return ExpertSpec(router, MlpSpec(fields.integer("moe_intermediate_size")))


def _sparse_layers(fields: Fields) -> list[bool]:
    """For each layer, whether it has experts: every decoder_sparse_step-th, but for
    mlp_only_layers.
    """
    step, dense = fields.integer("decoder_sparse_step", 1), fields.integers("mlp_only_layers")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers(fields))]
