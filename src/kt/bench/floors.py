"""The machine's floors: how fast its workers read memory, and how fast they multiply and add.

Machines are noisy, so the floors are sampled before and after every measurement, not once. A sample
is the best of many short slices: other programs only ever lower a slice, and between their turns
even a busy machine shows what it can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from kt.bench.formats import PEAKS, Peak
from kt.bench.timing import timed
from kt.errors import DoesNotFit
from kt.kernels.library import Library
from kt.machine.tree import Tree
from kt.units import MIB, format_bytes, parse_bytes

T = TypeVar("T")

SAMPLE_SECONDS: Final = 0.15
LEAST_SLICES: Final = 8
WINDOW: Final = 32 * MIB
"""Read in a slice; the next slice reads on from there."""
PEAK_SLICE_SECONDS: Final = 0.002
LEAST_BUFFER: Final = 512 * MIB
CACHE_FACTOR: Final = 4
"""A buffer this many times as large as the last-level caches is read from DRAM."""


@dataclass(frozen=True)
class Rates:
    """One sample: bytes read, and operations of each instruction kind (a multiplication and an
    addition are two), per second; all workers together."""

    read: float
    peaks: dict[Peak, float]


@dataclass(frozen=True)
class Floors:
    """The samples before and after a measurement."""

    before: Rates
    after: Rates

    @property
    def read(self) -> float:
        """Bytes per second, the mean of both."""
        return (self.before.read + self.after.read) / 2

    def peak(self, kind: Peak) -> float:
        """Operations per second of `kind`, the mean of both."""
        return (self.before.peaks[kind] + self.after.peaks[kind]) / 2

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        before, after = self.before, self.after
        return {
            "read_bytes_per_second": _rates(before.read, after.read),
            "operations_per_second": {
                kind: _rates(before.peaks[kind], after.peaks[kind]) for kind in before.peaks
            },
        }


def _rates(before: float, after: float) -> dict[str, float]:
    return {"before": before, "after": after, "mean": (before + after) / 2}


class Readable(Protocol):
    """Memory that was written to: `data` is a native pointer to `nbytes` bytes."""

    data: Any
    nbytes: int


class ReadBuffer:
    """Memory to read from. It was written to, because untouched pages all share one in a cache.

    Raises DoesNotFit when the system has not that much. Frees itself.
    """

    def __init__(self, library: Library, nbytes: int) -> None:
        ffi, lib = library.ffi, library.lib
        data = lib.kt_alloc(nbytes, -1)
        if data == ffi.NULL:
            raise DoesNotFit(
                f"the system refuses {nbytes} bytes ({format_bytes(nbytes)}) to measure the read "
                "bandwidth with",
                hint="Close other programs.",
            )
        self.data = ffi.gc(data, lambda pointer: lib.kt_free(pointer, nbytes))
        self.nbytes = nbytes
        np.frombuffer(ffi.buffer(self.data, nbytes), np.uint8).fill(1)


class Meter:
    """Samples the floors of `pool`, which reads `memory`. kinds: the instruction kinds of
    interest."""

    def __init__(
        self, library: Library, pool: Any, memory: Readable, kinds: Sequence[Peak]
    ) -> None:
        self._library, self._pool = library, pool
        self._memory = memory
        self._kinds = [kind for kind in PEAKS if kind in kinds]
        self._at = 0

    def around(self, work: Callable[[], T]) -> tuple[T, Floors]:
        """What `work` returns, and the floors before and after it."""
        before = self._sample()
        value = work()
        return value, Floors(before, self._sample())

    def _sample(self) -> Rates:
        peaks = {kind: _best(partial(self._peak, kind)) for kind in self._kinds}
        return Rates(_best(self._read), peaks)

    def _peak(self, kind: Peak) -> float:
        lib = self._library.lib
        number = getattr(lib, f"KT_PEAK_{kind.upper()}")
        return float(lib.kt_peak_rate(self._pool, number, PEAK_SLICE_SECONDS))

    def _read(self) -> float:
        """Bytes per second of one pass over the next window. Timed from outside: the workers share
        the memory, so what each alone would report does not add up."""
        memory, read = self._memory, self._library.lib.kt_read_rate
        window = min(WINDOW, memory.nbytes)
        if self._at + window > memory.nbytes:
            self._at = 0
        start = self._library.ffi.cast("uint8_t *", memory.data) + self._at
        self._at += window
        return window / timed(lambda: read(self._pool, start, window, 0.0))


def _best(measure: Callable[[], float]) -> float:
    end = time.monotonic() + SAMPLE_SECONDS
    slices: list[float] = []
    while len(slices) < LEAST_SLICES or time.monotonic() < end:
        slices.append(measure())
    return max(slices)


def cache_bytes(cpus: Sequence[int], root: Path = Path("/")) -> int:
    """Bytes of the last-level caches of `cpus` together; 0 where the system does not say."""
    tree = Tree(root)
    sizes: dict[tuple[str, str], int] = {}
    for cpu in cpus:
        folder = f"/sys/devices/system/cpu/cpu{cpu}/cache"
        for index in (4, 3, 2):
            size = tree.text(f"{folder}/index{index}/size")
            shared = tree.text(f"{folder}/index{index}/shared_cpu_list")
            if size and shared:
                sizes[str(index), shared] = parse_bytes(size)
                break
    return sum(sizes.values())


def beyond_caches(cpus: Sequence[int], least: int) -> int:
    """Bytes that are read from DRAM, not from caches: at least `least`."""
    return max(least, CACHE_FACTOR * cache_bytes(cpus))
