"""Measurements that an interrupt cuts short: what was measured before it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Cut(KeyboardInterrupt):
    """An interrupt. report: what was measured before it."""

    def __init__(self, report: Any) -> None:
        super().__init__()
        self.report = report


@contextmanager
def kept(report: Any, *points: list[Any]) -> Iterator[None]:
    """While `points` of `report` are measured, an interrupt is a Cut if there are some already."""
    try:
        yield
    except KeyboardInterrupt:
        if any(points):
            raise Cut(report) from None
        raise
