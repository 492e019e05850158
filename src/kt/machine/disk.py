"""Disk space where downloaded models go."""

from __future__ import annotations

import os
from pathlib import Path

from kt.machine.facts import Disk


def read(folder: Path) -> Disk | None:
    """The file system that `folder` is on, or will be once it is made."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is None:
        return None
    try:
        stat = os.statvfs(there)
    except OSError:
        return None
    return Disk(str(folder), stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)
