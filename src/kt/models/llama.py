"""Llama and what shares its config: dense decoder, grouped-query attention, SwiGLU."""

from __future__ import annotations

from kt.models.decoder import attention_spec, model_spec, n_layers
from kt.models.fields import Fields
from kt.models.spec import LayerSpec, MlpSpec, ModelSpec
from kt.weights.checkpoint import Checkpoint


def spec(fields: Fields, checkpoint: Checkpoint) -> ModelSpec:
    """The ModelSpec of a llama config. Raises ModelError."""
    fields.expect("hidden_act", "silu")
    fields.expect("mlp_bias", False)
    # GGUF converters reorder the rows of q and k so that rotated pairs are neighbours.
    interleaved = checkpoint.gguf_metadata is not None
    attention = attention_spec(fields, checkpoint, qk_norm=False, interleaved=interleaved)
    layer = LayerSpec(attention, MlpSpec(fields.integer("intermediate_size")))
    return model_spec("llama", fields, checkpoint, (layer,) * n_layers(fields))
