"""Marks in a text that arrives in pieces: found wherever the pieces are cut."""

from __future__ import annotations

from collections.abc import Iterable


def find(text: str, marks: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """The leftmost of `marks` in text[start:], the longest one at that place."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark, start)) >= 0]
    if not found:
        return None
    at, _, mark = min(found)
    return at, mark


def held(text: str, marks: Iterable[str]) -> int:
    """How many of the last characters may be the beginning of a mark."""
    marks = tuple(marks)
    longest = min(len(text), max(map(len, marks), default=1) - 1)
    for size in range(longest, 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0
