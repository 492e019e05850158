"""Captured machines: trees of /proc and /sys files, as they are or with a few files changed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from kt.machine.facts import Machine
from kt.machine.survey import survey

TREES = Path(__file__).parent / "data" / "machines"
NAMES = sorted(path.name for path in TREES.iterdir())


def captured(name: str) -> Machine:
    """The survey of the tree as it is."""
    return survey(TREES / name)


def changed(name: str, folder: Path, files: Mapping[str, str]) -> Machine:
    """The survey of a copy of the tree in `folder` with `files` ("/proc/..." -> text) changed."""
    shutil.copytree(TREES / name, folder, dirs_exist_ok=True)
    for path, text in files.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return survey(folder)
