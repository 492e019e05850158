"""One measured point beside the machine's floors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kt.bench.floors import Floors
from kt.bench.formats import Peak
from kt.bench.timing import Timing


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
        return self.floors.bandwidth_seconds(self.nbytes)

    @property
    def arithmetic_seconds(self) -> float:
        """The least time that the operations take."""
        return self.floors.arithmetic_seconds(self.operations)

    @property
    def floor_seconds(self) -> float:
        """The larger of the two floors: no program is faster."""
        return max(self.bandwidth_seconds, self.arithmetic_seconds)

    def fraction(self, floor: float, seconds: float | None = None) -> float:
        """How much of a floor is reached, 1 being all of it; by the median unless `seconds`."""
        taken = self.timing.median if seconds is None else seconds
        return floor / taken if taken else 0.0

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        best, floors = self.timing.best, self.floors
        kinds = (
            ("bandwidth", self.bandwidth_seconds),
            ("arithmetic", self.arithmetic_seconds),
            ("larger", self.floor_seconds),
        )
        return {
            "seconds": self.timing.to_json(),
            "bytes": self.nbytes,
            "operations": self.all_operations,
            "operations_by_kind": dict(self.operations),
            "floors": {
                **floors.to_json(),
                "bandwidth_seconds": self.bandwidth_seconds,
                "arithmetic_seconds": self.arithmetic_seconds,
            },
            "fraction": {name: self.fraction(floor) for name, floor in kinds},
            "fraction_of_best": {name: self.fraction(floor, best) for name, floor in kinds},
        }
