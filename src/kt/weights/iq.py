"""Exact float32 values of GGUF's IQ1, IQ2 and IQ3 types, in numpy.

A block of 256 values holds numbers of entries of a grid (iq_grids.py), each entry the sizes of 8 or
4 consecutive values, their signs, and odd scales. The formulas and their rounding are ggml's
(ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.weights.iq_grids import SIZES, grid_codes

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

_HALF: Final = np.float32(0.5)
_SEVEN_BITS: Final = np.arange(0, 28, 7, dtype=np.uint32)
# Seven signs are stored of eight: the last one makes their number even.
_EIGHT_SIGNS: Final = np.array([i | (i.bit_count() & 1) << 7 for i in range(128)], np.uint8)


def _numbers(blocks: U8, first: int, last: int, dtype: str) -> npt.NDArray[Any]:
    """Bytes first .. last of every block as numbers [n, count]."""
    return np.ascontiguousarray(blocks[:, first:last]).view(dtype)


def _float16(words: npt.NDArray[np.uint16]) -> F32:
    return words.view(np.float16).astype(np.float32)


def _scale(blocks: U8) -> F32:
    return _float16(_numbers(blocks, 0, 2, "<u2"))


def _nibbles(packed: U8) -> U8:
    """[n, b] bytes -> [n, 2b]: the low nibble first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def _values(encoding: str, entries: npt.NDArray[Any], signs: U8, scales: F32) -> F32:
    """entries [n, m] of the grid, sign bits [n, 32 bytes], scales [n, s] -> [n, 256]."""
    sizes = np.array(SIZES[encoding if encoding in SIZES else encoding[:3]], np.float32)
    values = sizes[grid_codes(encoding)[entries]].reshape(len(entries), scales.shape[1], -1)
    values = scales[:, :, None] * values
    minus = np.unpackbits(signs, axis=1, bitorder="little").reshape(values.shape)
    np.multiply(values, np.float32(-1), out=values, where=minus.astype(bool))
    result: F32 = values.reshape(len(entries), 256)
    return result


def _shifted(entries: npt.NDArray[Any], minus: npt.NDArray[Any], scales: F32) -> F32:
    """IQ1: scale * (entry +- 1 / 8). minus [n, m]: where it is less an eighth."""
    eighth = np.where(minus, np.float32(-0.125), np.float32(0.125))
    sizes = np.array(SIZES["IQ1"], np.float32)[grid_codes("IQ1")[entries]]
    values = (sizes + eighth[:, :, None]).reshape(len(entries), scales.shape[1], -1)
    result: F32 = (scales[:, :, None] * values).reshape(len(entries), 256)
    return result


def _iq1_s(blocks: U8) -> F32:
    high = _numbers(blocks, 34, 50, "<u2")
    fields = high[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    entries = blocks[:, 2:34].astype(np.uint16) | (fields << 8).reshape(-1, 32)
    scales = _scale(blocks) * (2 * (high >> 12 & 7) + 1).astype(np.float32)
    return _shifted(entries, np.repeat(high >> 15, 4, axis=1) != 0, scales)


def _iq1_m(blocks: U8) -> F32:
    high = _nibbles(blocks[:, 32:48])
    entries = blocks[:, :32].astype(np.uint16) | (high & 7).astype(np.uint16) << 8
    words = _numbers(blocks, 48, 56, "<u2")
    # The words' highest nibbles are the float16 scale.
    quarters = (words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    scale = _float16(np.bitwise_or.reduce(quarters, axis=1, keepdims=True))
    steps = (words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(-1, 16)
    return _shifted(entries, (high & 8) != 0, scale * (2 * steps + 1).astype(np.float32))


def _iq2_xxs(blocks: U8) -> F32:
    words = _numbers(blocks, 2, 66, "<u4").reshape(-1, 8, 2)
    entries = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    signs, steps = _signs_and_steps(words[:, :, 1])
    scales = _scale(blocks) * (_HALF + steps) * np.float32(0.25)
    return _values("IQ2_XXS", entries, signs, scales)


def _signs_and_steps(words: npt.NDArray[np.uint32]) -> tuple[U8, F32]:
    """Words [n, 8]: four times seven signs, and four bits of the scale."""
    signs = _EIGHT_SIGNS[words[:, :, None] >> _SEVEN_BITS & 127].reshape(-1, 32)
    return signs, (words >> 28).astype(np.float32)


def _iq2_xs(blocks: U8) -> F32:
    words = _numbers(blocks, 2, 66, "<u2")
    return _values("IQ2_XS", words & 511, _EIGHT_SIGNS[words >> 9], _scales_16(blocks, 66))


def _iq2_s(blocks: U8) -> F32:
    high = blocks[:, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    entries = blocks[:, 2:34].astype(np.uint16) | (high.astype(np.uint16) << 8).reshape(-1, 32)
    return _values("IQ2_S", entries, np.ascontiguousarray(blocks[:, 34:66]), _scales_16(blocks, 74))


def _scales_16(blocks: U8, at: int) -> F32:
    """IQ2's scales of 16 values [n, 16]."""
    steps = _nibbles(blocks[:, at : at + 8]).astype(np.float32)
    scales: F32 = _scale(blocks) * (_HALF + steps) * np.float32(0.25)
    return scales


def _iq3_xxs(blocks: U8) -> F32:
    signs, steps = _signs_and_steps(_numbers(blocks, 66, 98, "<u4"))
    return _values("IQ3_XXS", blocks[:, 2:66], signs, _scale(blocks) * (_HALF + steps) * _HALF)


def _iq3_s(blocks: U8) -> F32:
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little")
    entries = blocks[:, 2:66].astype(np.uint16) | ninth.astype(np.uint16) << 8
    scales = _scale(blocks) * (1 + 2 * _nibbles(blocks[:, 106:110])).astype(np.float32)
    return _values("IQ3_S", entries, np.ascontiguousarray(blocks[:, 74:106]), scales)


IQ_DECODERS: Final[dict[str, Callable[[U8], F32]]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
