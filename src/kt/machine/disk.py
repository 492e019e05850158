"""Disk space where downloaded models go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kt.machine.facts import Disk


def read(folder: Path) -> Disk | None:
    """The file system that `folder` is on, or will be once it is made."""
    way = (folder, *folder.parents)
    try:
        stat = os.statvfs(next(path for path in way if os.path.exists(path)))
    except (OSError, StopIteration):
        return None
    free = stat.f_bavail * stat.f_frsize
    return Disk(str(folder), stat.f_blocks * stat.f_frsize, free, _problem(way))


def _problem(way: Sequence[Path]) -> str:
    """Why the first of these folders, each in the next, cannot be made or written to."""
    there = next(path for path in way if os.path.lexists(path))
    if not os.path.isdir(there):
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"
