"""One measured point beside the machine's floors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kt.bench.floors import Floors
from kt.bench.formats import Peak
from kt.bench.timing import Timing


class Fractions(NamedTuple):
    """Floor divided by the time taken: 1 is all that the machine can do. larger: of the larger of
    the two floors."""

    bandwidth: float
    arithmetic: float
    larger: float


@dataclass(frozen=True)
class Point:
    """timing: of work that reads `nbytes` of weights (and of KV pages) and does `operations`."""

    timing: Timing
    nbytes: float
    operations: dict[Peak, float]
    floors: Floors

    @property
    def all_operations(self) -> float:
        """Operations of every kind together; a multiplication and an addition are two."""
        return sum(self.operations.values())

    @property
    def bandwidth_seconds(self) -> float:
        """The least time that reading the bytes takes."""
        return self.nbytes / self.floors.read

    @property
    def arithmetic_seconds(self) -> float:
        """The least time that the operations take, one kind after the other."""
        kinds = self.operations.items()
        return sum(count / self.floors.peak(kind) for kind, count in kinds if count)

    @property
    def median(self) -> Fractions:
        """What the median reaches of the floors."""
        return _fractions(self.timing.median, self.bandwidth_seconds, self.arithmetic_seconds)

    @property
    def best(self) -> Fractions:
        """What the best repetition reaches of the floors."""
        return _fractions(self.timing.best, self.bandwidth_seconds, self.arithmetic_seconds)

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        return {
            "seconds": self.timing.to_json(),
            "bytes": self.nbytes,
            "operations": self.all_operations,
            "operations_by_kind": dict(self.operations),
            "floors": {
                **self.floors.to_json(),
                "bandwidth_seconds": self.bandwidth_seconds,
                "arithmetic_seconds": self.arithmetic_seconds,
            },
            "reached": {"median": self.median._asdict(), "best": self.best._asdict()},
        }


def _fractions(seconds: float, bandwidth: float, arithmetic: float) -> Fractions:
    floors = (bandwidth, arithmetic, max(bandwidth, arithmetic))
    return Fractions(*(floor / seconds if seconds else 0.0 for floor in floors))
