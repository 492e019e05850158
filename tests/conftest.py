"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="how long test_soak.py keeps its server busy (default: 20; once in a while: 300)",
    )
