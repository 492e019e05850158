"""`library`: every kernel variant that this CPU runs, one after the other."""

from __future__ import annotations

import pytest

from kt.kernels.library import Library, load
from tests.native.harness import RUNNABLE


@pytest.fixture(params=RUNNABLE, scope="session")
def library(request: pytest.FixtureRequest) -> Library:
    return load(request.param)
