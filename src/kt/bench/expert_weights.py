"""Random expert weights in any format, quickly: a few experts are made and packed, the rest are
copies of them, each in memory of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.bench.formats import Format
from kt.errors import DoesNotFit, UsageError
from kt.kernels.library import Library, Source
from kt.placement.budget import PACKINGS, packed_bytes
from kt.units import format_bytes
from kt.weights.encodings import BY_NAME

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

BASE_EXPERTS: Final = 4
PARTS: Final = ("gate", "up", "down")


@dataclass(frozen=True)
class Sizes:
    """One MoE layer: every expert is gate and up [intermediate, hidden] and down [hidden,
    intermediate]."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int

    def shape(self, part: str) -> tuple[int, int]:
        """(n, k) of a matrix."""
        wide = (self.intermediate, self.hidden)
        return wide if part != "down" else (self.hidden, self.intermediate)

    def check(self, chosen: Format) -> None:
        """Raises UsageError for sizes that are no layer, or that `chosen` cannot hold."""
        for name, value in (
            ("--hidden", self.hidden),
            ("--intermediate", self.intermediate),
            ("--experts", self.experts),
            ("--top-k", self.top_k),
        ):
            if value < 1:
                raise UsageError(f"{name} {value}: at least 1")
        if self.top_k > self.experts:
            raise UsageError(
                f"--top-k {self.top_k}: a token cannot choose more than the {self.experts} experts"
            )
        block = max(PACKINGS[chosen.packed].group, BY_NAME[chosen.source].block_elements)
        for name, value in (("--hidden", self.hidden), ("--intermediate", self.intermediate)):
            if chosen.source != "F32" and value % block:
                raise UsageError(
                    f"{name} {value}: {chosen.name} has blocks of {block}, and rows are whole ones"
                )

    def expert_bytes(self, chosen: Format) -> int:
        """Packed bytes of one expert."""
        return sum(packed_bytes(chosen.packed, *self.shape(part)) for part in PARTS)

    @property
    def operations(self) -> int:
        """Of one expert for one token."""
        return 2 * len(PARTS) * self.hidden * self.intermediate


class ExpertWeights:
    """Packed experts of `layers` layers, all in one block. Expert e is a copy of base e %
    BASE_EXPERTS. Raises DoesNotFit."""

    def __init__(
        self, library: Library, pool: Any, sizes: Sizes, chosen: Format, layers: int, seed: int = 1
    ) -> None:
        self._library, self._pool = library, pool
        self.sizes, self.format, self.layers = sizes, chosen, layers
        self.strides = {part: packed_bytes(chosen.packed, *sizes.shape(part)) for part in PARTS}
        self.nbytes = layers * sizes.experts * sizes.expert_bytes(chosen)
        ffi, lib = library.ffi, library.lib
        data = lib.kt_alloc(self.nbytes, -1)
        if data == ffi.NULL:
            raise DoesNotFit(
                f"the system refuses {self.nbytes} bytes ({format_bytes(self.nbytes)}) for experts",
                hint="Fewer --layers or --experts need less.",
            )
        nbytes = self.nbytes
        self.data = ffi.gc(data, lambda pointer: lib.kt_free(pointer, nbytes))
        self._bytes = ffi.cast("uint8_t *", self.data)
        self._fill(np.random.default_rng(seed))

    def at(self, layer: int, part: str) -> Any:
        """Where the first expert's matrix of a layer lies; the next is strides[part] further."""
        experts = self.sizes.experts
        offset = layer * experts * sum(self.strides.values())
        for name in PARTS[: PARTS.index(part)]:
            offset += experts * self.strides[name]
        return self._bytes + offset

    def unpack(self, expert: int, part: str) -> F32:
        """The exact values of an expert's matrix in layer 0, [n, k]."""
        n, k = self.sizes.shape(part)
        out = np.empty((n, k), np.float32)
        ffi, number = self._library.ffi, self._library.format(self.format.packed)
        packed = self.at(0, part) + expert * self.strides[part]
        target = ffi.cast("float *", out.ctypes.data)
        self._library.check(self._library.lib.kt_unpack(self._pool, number, n, k, packed, target))
        return out

    def _fill(self, rng: np.random.Generator) -> None:
        bases = min(BASE_EXPERTS, self.sizes.experts)
        for number, part in enumerate(PARTS):
            n, k = self.sizes.shape(part)
            rows = random_rows(self.format, n, k, rng)
            for base in range(bases):
                # The same rows in another order are other weights, at no cost.
                turned = np.roll(rows, (number * bases + base) * n // (3 * bases), axis=0)
                self._pack(turned, part, self.at(0, part) + base * self.strides[part])
            for layer in range(self.layers):
                self._copy(layer, part, bases)

    def _pack(self, rows: U8, part: str, target: Any) -> None:
        source = Source(rows, BY_NAME[self.format.source].id, rows.shape[1])
        shape = self.sizes.shape(part)
        self._library.pack(self._pool, self.format.packed, shape, source, target)

    def _copy(self, layer: int, part: str, bases: int) -> None:
        """Repeats the bases, packed in layer 0, over the experts of a layer."""
        stride, ffi = self.strides[part], self._library.ffi
        source = self.at(0, part)
        for first in range(0 if layer else bases, self.sizes.experts, bases):
            count = min(bases, self.sizes.experts - first)
            ffi.memmove(self.at(layer, part) + first * stride, source, count * stride)


def random_rows(chosen: Format, n: int, k: int, rng: np.random.Generator) -> U8:
    """Rows [n, bytes] in the format's source encoding; values have a mean of 0 and a variance of
    about 1/k."""
    if chosen.source == "F32":
        values = rng.standard_normal((n, k), np.float32) * np.float32(k**-0.5)
        rows: U8 = values.view(np.uint8)
        return rows
    encoding = BY_NAME[chosen.source]
    count = n * (k // encoding.block_elements)
    blocks = rng.integers(0, 256, (count, encoding.block_bytes), dtype=np.uint8)
    _BLOCKS[chosen.source](blocks, k**-0.5)
    return blocks.reshape(n, -1)


def _half(blocks: U8, at: int, value: float) -> None:
    """A float16 at byte `at` of every block."""
    blocks[:, at : at + 2] = np.array([value], "<f2").view(np.uint8)


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


_BLOCKS: Final = {
    "Q5_0": _five,
    "Q5_1": _five_min,
    "Q4_K": _k_four,
    "Q5_K": _k_five,
    "Q6_K": _k_six,
}
