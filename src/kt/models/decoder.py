"""What the configs of decoder-only families have in common."""

from __future__ import annotations

from kt.models.fields import Fields
from kt.models.rope import rope_spec
from kt.models.spec import AttentionSpec, LayerSpec, ModelSpec
from kt.weights.checkpoint import Checkpoint

MAX_LAYERS = 10_000


def attention_spec(
    fields: Fields,
    checkpoint: Checkpoint,
    *,
    qk_norm: bool,
    window: int = 0,
    interleaved: bool = False,
) -> AttentionSpec:
    """Grouped-query attention as nearly every config describes it. Raises ModelError."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"it must divide num_attention_heads = {heads}")
    if fields.get("head_dim") is None and hidden % heads:
        raise fields.refuse("num_attention_heads", f"it must divide hidden_size = {hidden}")
    head_dim = fields.integer("head_dim", hidden // heads)
    bias = fields.flag("attention_bias")
    return AttentionSpec(
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope_spec(fields, checkpoint, head_dim, interleaved=interleaved),
        qkv_bias=bias,
        # A config's flag means all four projections; GGUF files only hold those that exist.
        output_bias=bias
        and (checkpoint.gguf_metadata is None or checkpoint.has("layers.0.o.bias")),
        qk_norm=qk_norm,
        window=window,
    )


def n_layers(fields: Fields) -> int:
    """num_hidden_layers, bounded."""
    count = fields.integer("num_hidden_layers")
    if count > MAX_LAYERS:
        raise fields.refuse("num_hidden_layers", f"at most {MAX_LAYERS}")
    return count


def model_spec(
    family: str, fields: Fields, checkpoint: Checkpoint, layers: tuple[LayerSpec, ...]
) -> ModelSpec:
    """The ModelSpec around `layers`. Raises ModelError."""
    return ModelSpec(
        family=family,
        hidden=fields.integer("hidden_size"),
        vocab=fields.integer("vocab_size"),
        context=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6, most=1.0),
        layers=layers,
        # A file that has an output matrix of its own means it, whatever the flag says.
        tied_embeddings=fields.flag("tie_word_embeddings") and not checkpoint.has("lm_head"),
        eos_ids=fields.integers("eos_token_id"),
        bos_id=next(iter(fields.integers("bos_token_id")), None),
    )
