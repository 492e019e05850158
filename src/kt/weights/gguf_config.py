"""A GGUF file's metadata as a config in Hugging Face's form. One row per architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kt.errors import ModelError
from kt.weights.tensor import Tensor

# GGUF architecture -> model_type. Which fields mean what is the same for both.
ARCHITECTURES: Final = {"llama": "llama", "qwen3moe": "qwen3_moe"}

# Keys below "{architecture}." that are translated, or that change nothing. Any other key is
# refused.
_KNOWN: Final = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "expert_feed_forward_length",
        "vocab_size",
        "expert_count",
        "expert_used_count",
        "expert_weights_norm",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)


class _Keys:
    """Typed access to the metadata of one architecture."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], architecture: str) -> None:
        self._path, self._metadata, self._prefix = path, metadata, architecture + "."
        for key, value in metadata.items():
            if key.startswith(self._prefix) and key.removeprefix(self._prefix) not in _KNOWN:
                raise ModelError(f"{path}: {key} = {str(value)[:80]} is not supported")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if type(value) is not int or value < 0:
            raise self._bad(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if type(value) not in (int, float):
            raise self._bad(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(self._prefix + key, default)
        if type(value) is not bool:
            raise self._bad(key, value, "true or false")
        return value

    def has(self, key: str) -> bool:
        return self._prefix + key in self._metadata

    def _get(self, key: str, default: float | None) -> Any:
        value = self._metadata.get(self._prefix + key, default)
        if value is None:
            raise ModelError(f"{self._path}: the metadata has no {self._prefix}{key}")
        return value

    def _bad(self, key: str, value: Any, what: str) -> ModelError:
        return ModelError(f"{self._path}: {self._prefix}{key} = {str(value)[:80]} is not {what}")

    def text(self, key: str, default: str) -> str:
        value = self._metadata.get(self._prefix + key, default)
        if not isinstance(value, str):
            raise self._bad(key, value, "a string")
        return value


def hf_config(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """The config of the model in `path`. Raises ModelError for an architecture that kt does not
    implement.
    """
    architecture = metadata.get("general.architecture")
    model_type = ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None
    if model_type is None:
        raise ModelError(
            f"{path}: architecture {architecture!r} is not supported "
            f"(supported: {', '.join(ARCHITECTURES)})",
            hint="This version of kt cannot run it; `kt models` lists models that it can run.",
        )
    keys = _Keys(path, metadata, str(architecture))
    config = _dense(keys, tensors)
    config["model_type"] = model_type
    config["rope_parameters"] = _rope(keys, tensors)
    if model_type == "qwen3_moe":
        config.update(_experts(keys))
    elif keys.integer("expert_count", 0):
        raise ModelError(
            f"{path}: architecture 'llama' with {architecture}.expert_count = "
            f"{keys.integer('expert_count')} (Mixtral) is not supported"
        )
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return config


def _dense(keys: _Keys, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    embed = tensors.get("token_embd.weight")
    head_dim = keys.integer("attention.key_length", hidden // max(heads, 1))
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise keys._bad(
            "attention.value_length", keys.integer("attention.value_length"), f"{head_dim}"
        )
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length", 0),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": embed.shape[0] if embed is not None else keys.integer("vocab_size"),
        "max_position_embeddings": keys.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "sliding_window": keys.integer("attention.sliding_window", 0) or None,
        "use_sliding_window": keys.integer("attention.sliding_window", 0) > 0,
    }


def _experts(keys: _Keys) -> dict[str, Any]:
    return {
        "num_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),  # usually not written
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _rope(keys: _Keys, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """rope_parameters as transformers 5 writes them.

    "factors" is this module's own type: each frequency is divided by an entry of the file's
    rope_freqs.weight, which is how a GGUF holds Llama 3's scaling.
    """
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // max(heads, 1))
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": keys.integer("rope.dimension_count", head_dim) / max(head_dim, 1),
    }
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none" and keys.has("rope.scale_linear"):  # the older spelling
        kind, rope["factor"] = "linear", keys.number("rope.scale_linear")
    elif kind != "none":
        rope["factor"] = keys.number("rope.scaling.factor", 1.0)
    if "rope_freqs.weight" in tensors:
        if kind != "none":
            raise keys._bad("rope.scaling.type", kind, "supported together with rope_freqs.weight")
        kind = "factors"
    rope["rope_type"] = "default" if kind == "none" else kind
    if kind == "yarn":
        rope["original_max_position_embeddings"] = keys.integer(
            "rope.scaling.original_context_length"
        )
        for name, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if keys.has(f"rope.scaling.{key}"):
                rope[name] = keys.number(f"rope.scaling.{key}")
    if keys.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise keys._bad("rope.scaling.attn_factor", keys.number("rope.scaling.attn_factor"), "1")
    return rope
