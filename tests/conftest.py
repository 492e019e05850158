"""Options of the whole suite."""

from __future__ import annotations

import os

import pytest

# Judges are small torch operations. Between two of them, torch's threads would spin on the cores
# that kt's own threads need: half of the processor time of some directories went there.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="how long test_soak.py keeps its server busy (default: 20; once in a while: 300)",
    )
