"""Repeated timings of one piece of work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of every repetition, in the order in which they were taken; at least one."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The shortest: what the machine does when nothing disturbs it."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The usual one."""
        return statistics.median(self.seconds)

    def less(self, other: Timing) -> Timing:
        """Without the time of `other`, which did a part of the same work: its median is taken from
        every repetition."""
        return Timing(tuple(max(s - other.median, 0.0) for s in self.seconds))

    def each(self, count: int) -> Timing:
        """Of one of `count` like pieces, which a repetition runs one after the other."""
        return Timing(tuple(s / count for s in self.seconds))

    def to_json(self) -> dict[str, Any]:
        """Seconds, and how often."""
        return {"best": self.best, "median": self.median, "repetitions": len(self.seconds)}


def timed(work: Callable[[], object]) -> float:
    """Seconds that one call of `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
