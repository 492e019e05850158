"""Amounts as people and programs write them, and choices with their reasons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

T = TypeVar("T")

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SUFFIX = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}


if TYPE_CHECKING:

    class Choice(NamedTuple, Generic[T]):
        """An automatic choice and the reason a user is told."""

        value: T
        reason: str

else:  # Python 3.10 has no generic NamedTuple; tuple's own __class_getitem__ makes Choice[int] work

    class Choice(NamedTuple):
        """An automatic choice and the reason a user is told."""

        value: T
        reason: str


def format_bytes(count: float) -> str:
    """`count` bytes in binary units: 1536 -> "1.5 KiB"."""
    if abs(count) < KIB:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.1f} {unit}"
    raise AssertionError


def parse_bytes(text: str) -> int:
    """Bytes from "4096", "512M", "1.5GiB" (binary units). Raises ValueError on anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not match:
        raise ValueError(f"not an amount of bytes: {text!r}")
    return int(float(match[1]) * _SUFFIX[match[2]])
