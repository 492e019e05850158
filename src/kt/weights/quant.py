"""Scales that lie apart from the codes they belong to, as safetensors checkpoints have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

SCALE_DTYPES: Final[dict[str, Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "E8M0": np.dtype("u1"),
    "E4M3": np.dtype("u1"),
}


@dataclass(frozen=True, eq=False)
class Zeros:
    """Zero points as a file has them, unpacked when they are asked for.

    words: of a matrix, or of a stack with its axis in front. unpack: words of a matrix or stack ->
    bytes shaped as its scales.
    """

    words: npt.NDArray[Any]
    unpack: Callable[[npt.NDArray[Any]], Bytes]

    def __call__(self) -> Bytes:
        return np.ascontiguousarray(self.unpack(self.words))

    def matrix(self, index: int) -> Zeros:
        """Of matrix `index` of a stack."""
        return Zeros(self.words[index], self.unpack)

    def rows(self, part: slice) -> Zeros:
        """Of some rows of the scales of a matrix."""
        return Zeros(self.words, lambda words: self.unpack(words)[part])


@dataclass(frozen=True, eq=False)
class Quant:
    """What the codes of a tensor [..., n, k] are multiplied by.

    packed_format: the native format it is loaded as. scales: [..., n / block[0], k / block[1]], the
    last of each may be partial; a view of the file in its scale_type (a key of SCALE_DTYPES).
    zeros: the zero points of 4-bit codes; None: 8. factor: float32 numbers
    that multiply whole matrices, one or one per matrix of a stack, or divide them. order: for every
    column the group it belongs to, where groups are no runs of columns (act_order.py).
    """

    packed_format: str
    scales: npt.NDArray[Any]
    scale_type: str
    block: tuple[int, int]
    zeros: Zeros | None = None
    factor: F32 | None = None
    divides: bool = False
    order: I32 | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the scales in the file."""
        return int(self.scales.nbytes)

    def matrix(self, index: int) -> Quant:
        """Of matrix `index` of a stack."""
        return replace(
            self,
            scales=self.scales[index],
            zeros=self.zeros and self.zeros.matrix(index),
            factor=None if self.factor is None else self.factor[index],
        )

    def rows(self, first: int, last: int) -> Quant:
        """Of rows first <= i < last of a matrix. Raises ValueError if they share scales with
        others.
        """
        step = self.block[0]
        if step > 1 and self.scales.shape[-2] == 1:
            return self  # one row of scales for all
        if first % step or last % step:
            raise ValueError(f"rows {first} to {last} are not whole blocks of {step}")
        part = slice(first // step, last // step)
        zeros = self.zeros and self.zeros.rows(part)
        return replace(self, scales=self.scales[part], zeros=zeros)

    def scale_values(self) -> F32:
        """The scales as float32, exactly."""
        raw = self.scales
        if self.scale_type == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        if self.scale_type == "E8M0":
            values: F32 = np.ldexp(np.float32(1), np.minimum(raw, 254).astype(np.int32) - 127)
            return np.where(raw == 255, np.float32("nan"), values)
        if self.scale_type == "E4M3":
            codes: F32 = E4M3[raw]
            return codes
        return raw.astype(np.float32)

    def factor_value(self) -> float:
        """What multiplies a matrix; 1 if nothing does."""
        if self.factor is None:
            return 1.0
        value = self.factor.reshape(-1)[0]
        return float(1 / value if self.divides else value)


def _e4m3() -> F32:
    """The values of all FP8 E4M3 codes (OCP): no infinities, 0x7f and 0xff are NaN."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values = np.where(codes & 0x7F == 0x7F, np.nan, values)
    return np.where(codes & 0x80, -values, values).astype(np.float32)


E4M3: Final = _e4m3()
E2M1: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""The values of the FP4 codes 0 to 7; bit 3 is the sign."""
