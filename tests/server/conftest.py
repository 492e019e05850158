"""Servers under test, as fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.fakes import FakeExecutor
from tests.server.harness import ENDINGS, Running, running


@pytest.fixture(scope="session", autouse=True)
def every_server_ends() -> Iterator[None]:
    yield
    ENDINGS.wait()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """serve(executor, tokenizer=None, **options of create_app) -> Running, until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(running(*args, **options))


@pytest.fixture(scope="module")
def random_server() -> Iterator[Running]:
    """One that answers pseudo-random text; for tests that do not care what it says."""
    with running(FakeExecutor()) as server:
        yield server
