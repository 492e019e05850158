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
    parameters = _parameters(fields)
    rope = Fields(parameters, "rope_parameters")
    kind = rope.get("rope_type")
    dims = int(head_dim * rope.number("partial_rotary_factor", 1.0, most=1.0))
    if dims % 2 or not 0 < dims <= head_dim:
        raise rope.refuse("partial_rotary_factor", f"it leaves {dims} of {head_dim} dimensions")
    try:
        with np.errstate(all="ignore"):
            base = rope.number("rope_theta", 10000.0) ** (-np.arange(0, dims, 2) / dims)
            if kind == "factors":
                frequencies, attention_factor = base / _factors(checkpoint, len(base)), 1.0
            else:
                frequencies, attention_factor = _SCALINGS[kind](rope, base)
    except (ArithmeticError, ValueError):
        attention_factor = math.nan
    rope.finish()
    if not (math.isfinite(attention_factor) and np.isfinite(frequencies).all()):
        raise ModelError(f"rope_parameters = {parameters} give no finite frequencies")
    return RopeSpec(dims, tuple(frequencies.tolist()), interleaved, attention_factor)


def _parameters(fields: Fields) -> dict[str, Any]:
    """One flat dictionary in transformers 5's form, whichever form the config has."""
    merged: dict[str, Any] = {}
    for part in ("rope_scaling", "rope_parameters"):  # the newer spelling wins
        value = fields.get(part, {})
        if not isinstance(value, dict):
            raise fields.refuse(part, "an object is needed")
        if any(isinstance(inner, dict) for inner in value.values()):
            raise fields.refuse(part, "one set for all layers is needed")
        merged.update(value)
    for key in ("rope_theta", "partial_rotary_factor"):
        merged.setdefault(key, fields.get(key))
    merged = {key: value for key, value in merged.items() if value is not None}
    older = merged.pop("type", "default")
    kind = merged.setdefault("rope_type", older)
    if not isinstance(kind, str) or kind not in (*_SCALINGS, "factors"):
        supported = ", ".join(_SCALINGS)
        raise ModelError(f"rope_type = {str(kind)[:80]} is not supported: supported: {supported}")
    _add_original_context(fields, merged)
    return merged


def _add_original_context(fields: Fields, rope: dict[str, Any]) -> None:
    """As transformers: a field of the whole config wins, the context length is the last resort."""
    key = "original_max_position_embeddings"
    original = fields.get(key)
    if rope["rope_type"] not in ("llama3", "yarn"):
        if original is not None:
            raise fields.refuse(key, "it needs rope_type llama3 or yarn")
        return
    context = fields.integer("max_position_embeddings")
    if original is not None:
        rope[key] = original
    rope.setdefault(key, context)
    if rope["rope_type"] == "yarn":
        rope.setdefault("factor", context / Fields(rope, "rope_parameters").number(key))


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
        dimension(rope.number("beta_fast", 32.0, most=1e9)),
        dimension(rope.number("beta_slow", 1.0, most=1e9)),
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
