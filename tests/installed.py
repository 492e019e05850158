"""Processes that run the very kt that these tests import, installed or from a source tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kt

ROOT = Path(__file__).parents[1]
PACKAGES = Path(kt.__file__).resolve().parents[1]
KT = (sys.executable, "-m", "kt")


def environment(*folders: Path, **changes: str) -> dict[str, str]:
    """This process's environment with `changes`; Python finds kt where it is here, and then what
    lies in `folders`.
    """
    path = os.pathsep.join(map(str, (PACKAGES, *folders)))
    return {**os.environ, "PYTHONPATH": path, **changes}
