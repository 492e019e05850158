"""An idle engine gives its memory back and takes it again at the next request."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kt.engine.engine import Engine
from kt.engine.request import Request, Sampling
from kt.engine.sleeper import Sleeper
from kt.errors import DoesNotFit
from tests.engine.driving import SMALL, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor

GREEDY = Sampling(max_tokens=12, temperature=0.0, seed=0, ignore_eos=True)


class Factory:
    """Makes executors and keeps them; raises once `full` is set."""

    def __init__(self, latency: float = 0.0) -> None:
        self.made: list[FakeExecutor] = []
        self.full = False
        self._latency = latency

    def __call__(self) -> FakeExecutor:
        if self.full:
            raise DoesNotFit("no memory is left")
        self.made.append(FakeExecutor(**SMALL, latency=self._latency))
        return self.made[-1]


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def sleeping_engine(factory: Factory, seconds: float) -> Engine:
    return make_engine(Sleeper(factory), unload_after=seconds)  # type: ignore[arg-type]


def test_it_sleeps_wakes_and_answers_as_before() -> None:
    factory = Factory()
    request = Request([5] * 40, GREEDY)
    with sleeping_engine(factory, 0.1) as engine:
        assert engine.stats().loaded
        for round_ in range(3):
            result = engine.submit(request).result()
            assert ids(result) == expected_ids(request)
            # What the pages held is gone with them: nothing may be found there.
            assert result.finished.cached_tokens == 0
            assert len(factory.made) == round_ + 1
            until(lambda: not engine.stats().loaded)
            assert factory.made[-1].closed
        assert engine.stats().pages_cached == 0
    assert_all_free(engine)


def test_within_the_time_it_stays_awake() -> None:
    factory = Factory(latency=0.02)
    with sleeping_engine(factory, 0.2) as engine:
        for _ in range(4):  # each answer takes longer than the idle time
            engine.submit(Request([5] * 20, GREEDY)).result()
            time.sleep(0.05)
        assert engine.stats().loaded and len(factory.made) == 1


def test_a_sleeping_engine_uses_no_cpu() -> None:
    with sleeping_engine(Factory(), 0.01) as engine:
        until(lambda: not engine.stats().loaded)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.02


def test_a_failed_waking_ends_its_request_and_is_tried_again() -> None:
    factory = Factory()
    request = Request([7, 8], GREEDY)
    with sleeping_engine(factory, 0.05) as engine:
        until(lambda: not engine.stats().loaded)
        factory.full = True
        failed = engine.submit(request).result()
        assert (failed.finished.reason, failed.finished.message) == ("error", "no memory is left")
        factory.full = False
        assert ids(engine.submit(request).result()) == expected_ids(request)


@pytest.mark.parametrize("asleep", [False, True])
def test_closing_is_clean(asleep: bool) -> None:
    factory = Factory()
    sleeper = Sleeper(factory)
    with make_engine(sleeper, unload_after=0.01 if asleep else 60.0) as engine:  # type: ignore[arg-type]
        if asleep:
            until(lambda: not engine.stats().loaded)
    sleeper.close()
    sleeper.close()
    assert factory.made[0].closed and len(factory.made) == 1
