"""Random expert weights in any format, quickly: a few experts are made and packed, the rest are
copies of them, each in memory of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.bench.formats import Format
from kt.bench.random_weights import random_tensor, turned
from kt.engine.sources import source_of
from kt.errors import DoesNotFit, UsageError
from kt.kernels.library import Library
from kt.placement.budget import PACKINGS, packed_bytes
from kt.units import format_bytes
from kt.weights.encodings import BY_NAME
from kt.weights.tensor import Tensor

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
        block = 1
        if chosen.source not in ("F32", ""):
            block = max(PACKINGS[chosen.packed].group, BY_NAME[chosen.source].block_elements)
        for name, value in (("--hidden", self.hidden), ("--intermediate", self.intermediate)):
            if value % block:
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
            tensor = random_tensor(self.format, n, k, rng)
            for base in range(bases):
                # The same rows in another order are other weights, at no cost.
                rows = turned(tensor, (number * bases + base) * n // (3 * bases))
                self._pack(rows, part, self.at(0, part) + base * self.strides[part])
            for layer in range(self.layers):
                self._copy(layer, part, bases)

    def _pack(self, tensor: Tensor, part: str, target: Any) -> None:
        packed, shape = self.format.packed, self.sizes.shape(part)
        self._library.pack(self._pool, packed, shape, source_of(tensor, packed), target)

    def _copy(self, layer: int, part: str, bases: int) -> None:
        """Repeats the bases, packed in layer 0, over the experts of a layer."""
        stride, ffi = self.strides[part], self._library.ffi
        source = self.at(0, part)
        for first in range(0 if layer else bases, self.sizes.experts, bases):
            count = min(bases, self.sizes.experts - first)
            ffi.memmove(self.at(layer, part) + first * stride, source, count * stride)
