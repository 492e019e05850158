"""Rotary frequencies from a config, for every scaling that kt implements.

Accepts transformers 5's rope_parameters and the older rope_theta, rope_scaling and
partial_rotary_factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.models.fields import Fields
from kt.models.spec import RopeSpec
from kt.weights.checkpoint import Checkpoint
from kt.weights.dequantize import dequantize

F64 = npt.NDArray[np.float64]


def rope_spec(
    fields: Fields, checkpoint: Checkpoint, head_dim: int, *, interleaved: bool = False
) -> RopeSpec:
    """The RopeSpec of a config. Raises ModelError for a scaling that is not implemented."""
    rope = Fields(_parameters(fields), "rope_parameters")
    kind = rope.get("rope_type", rope.get("type", "default"))
    rope.get("type")
    dims = int(head_dim * rope.number("partial_rotary_factor", 1.0))
    if dims % 2 or not 0 < dims <= head_dim:
        raise rope.refuse("partial_rotary_factor", f"it leaves {dims} of {head_dim} dimensions")
    base: F64 = rope.number("rope_theta", 10000.0) ** (
        -np.arange(0, dims, 2, dtype=np.float64) / dims
    )
    if kind == "factors":
        scaled, attention_factor = base / _factors(checkpoint, len(base)), 1.0
    elif kind in _SCALINGS:
        scaled, attention_factor = _SCALINGS[kind](rope, base)
    else:
        raise rope.refuse("rope_type", f"supported: {', '.join(_SCALINGS)}")
    rope.finish()
    return RopeSpec(dims, tuple(scaled.tolist()), interleaved, attention_factor)


def _parameters(fields: Fields) -> dict[str, Any]:
    """One flat dictionary in transformers 5's form, whichever form the config has."""
    rope = fields.get("rope_parameters")
    scaling = fields.get("rope_scaling")
    merged = {**(scaling or {}), **(rope or {})}
    for key in ("rope_theta", "partial_rotary_factor"):
        value = fields.get(key)
        if value is not None:
            merged.setdefault(key, value)
    if any(isinstance(value, dict) for value in merged.values()):
        raise fields.refuse("rope_parameters", "one set for all layers is needed")
    # As transformers does: a field of the whole config wins, the context length is the last resort.
    original = fields.get("original_max_position_embeddings")
    if merged.get("rope_type", merged.get("type")) in ("llama3", "yarn"):
        context = fields.integer("max_position_embeddings")
        if original is not None:
            merged["original_max_position_embeddings"] = original
        merged.setdefault("original_max_position_embeddings", context)
        if merged.get("factor") is None:
            merged["factor"] = context / merged["original_max_position_embeddings"]
    elif original is not None:
        raise fields.refuse("original_max_position_embeddings", "it needs rope_type llama3 or yarn")
    return merged


def _factors(checkpoint: Checkpoint, count: int) -> F64:
    """Divisors of the frequencies, as GGUF files hold them (Llama 3's scaling, computed at
    conversion).
    """
    factors = dequantize(checkpoint.tensor("rope_factors")).astype(np.float64).ravel()
    if factors.shape != (count,) or not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelError(f"rope_freqs.weight does not hold {count} positive numbers")
    return factors


def _default(rope: Fields, base: F64) -> tuple[F64, float]:
    return base, 1.0


def _linear(rope: Fields, base: F64) -> tuple[F64, float]:
    """Position interpolation, arXiv 2306.15595."""
    return base / rope.number("factor"), 1.0


def _llama3(rope: Fields, base: F64) -> tuple[F64, float]:
    """Llama 3.1: long waves are divided by factor, short ones kept, those between blended."""
    factor, context = rope.number("factor"), rope.number("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.refuse("high_freq_factor", f"it must exceed low_freq_factor = {low}")
    keep = np.clip((context * base / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    return base / factor * (1 - keep) + base * keep, 1.0


def _yarn(rope: Fields, base: F64) -> tuple[F64, float]:
    """YaRN, arXiv 2309.00071: interpolate slow dimensions, keep fast ones, ramp between; cos and
    sin are scaled.
    """
    theta, dims = rope.number("rope_theta", 10000.0), 2 * len(base)
    factor, context = rope.number("factor"), rope.number("original_max_position_embeddings")

    def dimension(rotations: float) -> float:
        """The dimension that makes `rotations` turns over the original context."""
        return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = (
        dimension(rope.number("beta_fast", 32.0)),
        dimension(rope.number("beta_slow", 1.0)),
    )
    if rope.flag("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    if first == last:
        last += 0.001  # the ramp must have a width
    ramp = np.clip((np.arange(len(base)) - first) / (last - first), 0.0, 1.0)
    return base / factor * ramp + base * (1 - ramp), _yarn_attention(rope, factor)


def _yarn_attention(rope: Fields, factor: float) -> float:
    mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    given = rope.get("attention_factor")
    if given is not None:
        return rope.number("attention_factor")
    if mscale and mscale_all:
        return _mscale(factor, rope.number("mscale")) / _mscale(
            factor, rope.number("mscale_all_dim")
        )
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


_SCALINGS: Final[dict[str, Callable[[Fields, F64], tuple[F64, float]]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
