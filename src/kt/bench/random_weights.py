"""Random weights in any format: bytes with a mean of 0 and a variance of about 1/k."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.bench.formats import Format
from kt.weights.encodings import BY_NAME, FP8, INT8, U4, Encoding
from kt.weights.iq_grids import SIZES, grid_codes
from kt.weights.quant import E2M1, E4M3, Quant, Zeros
from kt.weights.tensor import Tensor

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def random_tensor(chosen: Format, n: int, k: int, rng: np.random.Generator) -> Tensor:
    """A matrix [n, k] in the format's source encoding."""
    if not chosen.source:
        return _apart(chosen.packed, n, k, rng)
    encoding = BY_NAME[chosen.source]
    if chosen.source == "F32":
        values = rng.standard_normal((n, k), np.float32) * np.float32(k**-0.5)
        return Tensor(chosen.name, (n, k), encoding, values.view(np.uint8).reshape(-1))
    count = n * (k // encoding.block_elements)
    blocks = rng.integers(0, 256, (count, encoding.block_bytes), dtype=np.uint8)
    _BLOCKS[chosen.source](blocks, k**-0.5)
    return Tensor(chosen.name, (n, k), encoding, blocks.reshape(-1))


def turned(tensor: Tensor, by: int) -> Tensor:
    """The same rows, `by` further down."""
    rows = np.roll(tensor.data.reshape(tensor.shape[0], -1), by, axis=0)
    quant = tensor.quant and replace(tensor.quant, scales=np.roll(tensor.quant.scales, by, axis=0))
    return replace(tensor, data=rows.reshape(-1), quant=quant)


# Formats whose scales lie apart: encoding, scale type, columns of a scale (0: all), zero points.
_APART: Final[dict[str, tuple[Encoding, str, int, bool]]] = {
    "F8_G32": (FP8, "F32", 32, False),
    "F8_G128": (FP8, "F32", 128, False),
    "F8_ROW": (FP8, "F32", 0, False),
    "F8_MX": (FP8, "E8M0", 32, False),
    "I8_ROW": (INT8, "F32", 0, False),
    "I4_B32": (U4, "BF16", 32, False),
    "I4_B128": (U4, "BF16", 128, False),
    "I4_Z32": (U4, "F32", 32, True),
    "I4_Z64": (U4, "F32", 64, True),
    "I4_Z128": (U4, "F32", 128, True),
    "I4_Z128H": (U4, "F16", 128, True),
    "F4_NV": (U4, "E4M3", 16, False),
}
_POWERS: Final = np.ldexp(np.float32(1), np.arange(-127, 127))  # of E8M0


@cache
def _fp8_codes() -> U8:
    """65536 FP8 codes distributed as a checkpoint's: normal, with the largest on 448. Uniform ones
    would be subnormal a thousand times as often, which some CPUs multiply slowly."""
    values = np.random.default_rng(0).standard_normal(65536)
    values *= 448 / np.abs(values).max()
    sizes = E4M3[:127].astype(np.float64)
    nearest = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, np.abs(values))
    return (nearest + np.where(values < 0, 128, 0)).astype(np.uint8)


def _apart(packed: str, n: int, k: int, rng: np.random.Generator) -> Tensor:
    encoding, scale_type, group, has_zeros = _APART[packed]
    row = -(-k // 2) if encoding is U4 else k
    if encoding is FP8:
        data = _fp8_codes()[rng.integers(0, 65536, (n, row), dtype=np.uint16)]
    else:
        data = rng.integers(0, 256, (n, row), dtype=np.uint8)
    groups = -(-k // (group or k))
    target = k**-0.5 / _code_size(packed, encoding)
    scales = _scales(scale_type, target, n * groups, rng).reshape(n, groups)
    # The mean code is 7.5.
    zeros = Zeros(rng.integers(7, 9, (n, groups), dtype=np.uint8), np.asarray)
    quant = Quant(packed, scales, scale_type, (1, group or k), zeros if has_zeros else None)
    return Tensor(packed, (n, k), encoding, data.reshape(-1), quant)


def _code_size(packed: str, encoding: Encoding) -> float:
    """The root mean square of what a random code stands for."""
    if encoding is FP8:
        values = E4M3[_fp8_codes()]
    elif encoding is INT8:
        values = np.arange(-128, 128, dtype=np.float32)
    else:
        values = E2M1 if packed.startswith("F4") else np.arange(-8, 8, dtype=np.float32)
    return float(np.sqrt(np.mean(values.astype(np.float64) ** 2)))


def _scales(
    scale_type: str, target: float, count: int, rng: np.random.Generator
) -> npt.NDArray[Any]:
    if scale_type == "E8M0":
        return _mixed(_POWERS, target, count, rng)
    if scale_type == "E4M3":
        return _mixed(E4M3[:127], target, count, rng)
    # Signs of both kinds: codes without a zero point have a mean of their own.
    values: F32 = (rng.integers(0, 2, count) * 2 - 1).astype(np.float32) * np.float32(target)
    if scale_type == "BF16":
        upper: npt.NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
        return upper
    return values.astype("<f2") if scale_type == "F16" else values


def _half(blocks: U8, at: int, value: float) -> None:
    """A float16 at byte `at` of every block."""
    blocks[:, at : at + 2] = np.array([value], "<f2").view(np.uint8)


def _mixed(table: F32, target: float, count: int, rng: np.random.Generator) -> U8:
    """Codes of two neighbours in an ascending `table`, in such shares that their root mean square
    is `target`."""
    high = int(np.searchsorted(table, np.float32(target)))
    low = max(high - 1, 0)
    squares = table[low] ** 2, table[high] ** 2
    share = (target**2 - squares[0]) / max(squares[1] - squares[0], 1e-38)
    return np.where(rng.random(count) < share, high, low).astype(np.uint8)


def _five(blocks: U8, deviation: float) -> None:
    _half(blocks, 0, deviation / _spread(32))  # Q5_0: d * (q - 16)


def _five_min(blocks: U8, deviation: float) -> None:
    scale = deviation / _spread(32)  # Q5_1: d * q + m
    _half(blocks, 0, scale)
    _half(blocks, 2, -15.5 * scale)


def _k_four(blocks: U8, deviation: float) -> None:
    _k_scales(blocks, 16, deviation)


def _k_five(blocks: U8, deviation: float) -> None:
    _k_scales(blocks, 32, deviation)


def _k_scales(blocks: U8, codes: int, deviation: float) -> None:
    """Q4_K, Q5_K: d * sc * q - dmin * m. With m = sc (its bytes mirror those of sc) and dmin the
    mean code times d, the mean is 0. The root mean square of 6 random bits is 36.7."""
    scale = deviation / (_spread(codes) * 36.7)
    _half(blocks, 0, scale)
    _half(blocks, 2, scale * (codes - 1) / 2)
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17


def _k_six(blocks: U8, deviation: float) -> None:
    # Q6_K: d * sc * (q - 32), sc signed; kept below 32 so that d is a normal float16.
    blocks[:, 192:208] &= 31
    _half(blocks, 208, deviation / (_spread(64) * 18.0))


def _spread(codes: int) -> float:
    """Standard deviation of a uniformly random code."""
    return float(((codes * codes - 1) / 12) ** 0.5)


def _k_two(blocks: U8, deviation: float) -> None:
    # Q2_K: d * sc * q - dmin * m; with m = sc and dmin = 1.5 d the mean is 0. The root mean square
    # of 4 random bits is 8.8.
    blocks[:, :16] = (blocks[:, :16] & 15) * 17
    scale = deviation / (_spread(4) * 8.8)
    _half(blocks, 80, scale)
    _half(blocks, 82, scale * 1.5)


def _k_three(blocks: U8, deviation: float) -> None:
    # Q3_K: d * sc * (q - 4), sc 6 bits less 32.
    _half(blocks, 108, deviation / (2.35 * 18.5))


_NL_SIZE: Final = 67.4
"""Root mean square of IQ4_NL's table."""


def _nl(blocks: U8, deviation: float) -> None:
    _half(blocks, 0, deviation / _NL_SIZE)
    blocks[::2, 1] |= 0x80  # signs of both kinds: the table has a mean of its own


def _nl_k(blocks: U8, deviation: float) -> None:
    _half(blocks, 0, deviation / (_NL_SIZE * 18.5))  # d * sc * value, sc 6 bits less 32


def _fp4(blocks: U8, deviation: float) -> None:
    target = deviation / _code_size("F4_MX", U4)
    blocks[:, 0] = _mixed(_POWERS, target, len(blocks), np.random.default_rng(0))


def _grid(encoding: str, divisor: int = 1, steps: int = 16) -> Callable[[U8, float], None]:
    """IQ types: d * (2 s + 1) / divisor * size, s below `steps`."""
    sizes = np.array(SIZES[encoding if encoding in SIZES else encoding[:3]], np.float64)
    size = float(np.sqrt(np.mean(sizes[grid_codes(encoding)] ** 2)))
    odd = ((4 * steps * steps - 1) / 3) ** 0.5  # root mean square of 1, 3, ..

    def fill(blocks: U8, deviation: float) -> None:
        scale = deviation * divisor / (size * odd)
        if encoding != "IQ1_M":
            return _half(blocks, 0, scale)
        low, high = np.array([scale], "<f2").view(np.uint8).tolist()
        for at, nibble in zip((49, 51, 53, 55), (low, low >> 4, high, high >> 4), strict=True):
            blocks[:, at] = blocks[:, at] & 15 | (nibble & 15) << 4

    return fill


_BLOCKS: Final = {
    "Q5_0": _five,
    "Q5_1": _five_min,
    "Q4_K": _k_four,
    "Q5_K": _k_five,
    "Q6_K": _k_six,
    "Q2_K": _k_two,
    "Q3_K": _k_three,
    "IQ4_NL": _nl,
    "IQ4_XS": _nl_k,
    "MXFP4": _fp4,
    "IQ1_S": _grid("IQ1_S", steps=8),
    "IQ1_M": _grid("IQ1_M", steps=8),
    "IQ2_XXS": _grid("IQ2_XXS", 8),
    "IQ2_S": _grid("IQ2_S", 8),
    "IQ3_XXS": _grid("IQ3_XXS", 4),
    "IQ3_S": _grid("IQ3_S"),
}
