"""The machine's floors: how fast its workers read memory, and how fast they multiply and add.

Machines are noisy, so the floors are sampled before and after every measurement, not once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from kt.bench.formats import PEAKS, Peak
from kt.errors import DoesNotFit
from kt.kernels.library import Library
from kt.machine.tree import Tree
from kt.units import MIB, format_bytes, parse_bytes

SLICES: Final = 4
"""A sample is the best of so many short ones: whatever disturbs a floor only lowers it."""
READ_SECONDS: Final = 0.05
PEAK_SECONDS: Final = 0.03
FRESH_SECONDS: Final = 1.0
"""A sample after one measurement is also the one before the next, unless it is older than this."""
LEAST_BUFFER: Final = 512 * MIB
CACHE_FACTOR: Final = 4
"""A buffer this many times as large as the last-level caches is read from DRAM."""


@dataclass(frozen=True)
class Rates:
    """One sample: bytes read per second, and operations per second of each instruction kind (a
    multiplication and an addition are two); all workers together."""

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

    def bandwidth_seconds(self, nbytes: float) -> float:
        """The least time to read `nbytes`."""
        return nbytes / self.read

    def arithmetic_seconds(self, operations: dict[Peak, float]) -> float:
        """The least time to do `operations`, one kind after the other."""
        return sum(count / self.peak(kind) for kind, count in operations.items() if count)

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        read = {"before": self.before.read, "after": self.after.read, "mean": self.read}
        peaks = {
            kind: {
                "before": self.before.peaks[kind],
                "after": self.after.peaks[kind],
                "mean": self.peak(kind),
            }
            for kind in self.before.peaks
        }
        return {"read_bytes_per_second": read, "operations_per_second": peaks}


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
        self._last: Rates | None = None
        self._taken = 0.0

    def sample(self) -> Rates:
        """A fresh sample."""
        lib = self._library.lib
        memory = self._memory
        read = _best(lambda: lib.kt_read_rate(self._pool, memory.data, memory.nbytes, READ_SECONDS))
        peaks = {kind: _best(partial(self._peak, kind)) for kind in self._kinds}
        self._last, self._taken = Rates(read, peaks), time.monotonic()
        return self._last

    def _peak(self, kind: Peak) -> float:
        lib = self._library.lib
        number = getattr(lib, f"KT_PEAK_{kind.upper()}")
        return float(lib.kt_peak_rate(self._pool, number, PEAK_SECONDS))

    def around(self, work: Callable[[], Any]) -> tuple[Any, Floors]:
        """What `work` returns, and the floors before and after it."""
        before = self._last
        if before is None or time.monotonic() - self._taken > FRESH_SECONDS:
            before = self.sample()
        value = work()
        return value, Floors(before, self.sample())


def _best(measure: Callable[[], float]) -> float:
    return max(float(measure()) for _ in range(SLICES))


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
