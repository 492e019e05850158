"""Whoever leaves, frees its place within one step, wherever it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from kt.engine.engine import Engine
from kt.engine.request import Delta, Finished, Request, Sampling
from tests.engine.driving import SMALL, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor

ENDLESS = Sampling(temperature=0.0, ignore_eos=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def slow_engine(latency: float = 0.005, **options: object) -> tuple[FakeExecutor, Engine]:
    executor = FakeExecutor(latency=latency, **(SMALL | {"context": 2000}))
    return executor, make_engine(executor, **options)


def test_in_the_queue() -> None:
    _, engine = slow_engine(max_batch=1)
    with engine:
        running = engine.submit(Request([1], ENDLESS))
        waiting = engine.submit(Request([2] * 50, ENDLESS))
        until(lambda: engine.stats().running == 1 and engine.stats().waiting == 1)
        waiting.cancel()
        result = waiting.result()
        assert (result.text, result.finished.reason) == ("", "cancelled")
        assert result.finished.completion_tokens == 0
        assert engine.stats().running == 1
        running.cancel()
        assert running.result().finished.reason == "cancelled"
    assert_all_free(engine)


def test_in_prefill() -> None:
    executor, engine = slow_engine(prefill_chunk=4)
    with engine:
        handle = engine.submit(Request([1] * 1000, ENDLESS))
        until(lambda: len(executor.batches) >= 3)
        handle.cancel()
        before = len(executor.batches)
        assert handle.result().finished.reason == "cancelled"
        assert len(executor.batches) <= before + 2  # the step in flight, and one that had begun
        assert_all_free(engine)
    assert executor.rows_run < 1000


def test_in_decode() -> None:
    executor, engine = slow_engine()
    with engine:
        handle = engine.submit(Request([1], ENDLESS))
        events = iter(handle)
        assert isinstance(next(events), Delta)
        handle.cancel()
        before = len(executor.batches)
        *_, last = events
        assert isinstance(last, Finished) and last.reason == "cancelled"
        assert len(executor.batches) <= before + 2
        assert_all_free(engine)


def test_neighbours_do_not_notice() -> None:
    _, engine = slow_engine(latency=0.001, prefill_chunk=8)
    request = Request([4] * 20, Sampling(max_tokens=60, temperature=0.0, seed=0, ignore_eos=True))
    with engine:
        kept = engine.submit(request)
        for i in range(10):
            leaving = engine.submit(Request([i] * 30, ENDLESS))
            time.sleep(0.004)
            leaving.cancel()
            leaving.cancel()
        assert ids(kept.result()) == expected_ids(request)
    assert_all_free(engine)


def test_after_the_end_nothing_happens() -> None:
    engine = make_engine()
    with engine:
        handle = engine.submit(Request([1], Sampling(max_tokens=2)))
        result = handle.result()
        handle.cancel()
        again = engine.submit(Request([1], Sampling(max_tokens=2)))
        assert again.result().finished.reason in ("length", "stop")
    assert result.finished.reason in ("length", "stop")
    handle.cancel()  # the engine is closed


@pytest.mark.parametrize("seed", range(2))
def test_random_cancels_leak_no_page(seed: int) -> None:
    rng = random.Random(seed)
    executor = FakeExecutor(**(SMALL | {"n_pages": 40}))
    engine = make_engine(executor, max_batch=5, prefill_chunk=16)
    with engine:
        handles = []
        for _ in range(80):
            prompt = [rng.choice([1, 2])] * rng.randint(1, 100)
            handles.append(engine.submit(Request(prompt, Sampling(max_tokens=rng.randint(1, 50)))))
            if rng.random() < 0.5:
                rng.choice(handles).cancel()
            time.sleep(rng.random() * 0.002)
        reasons = {handle.result().finished.reason for handle in handles}
    assert reasons <= {"stop", "length", "cancelled"} and "cancelled" in reasons
    assert_all_free(engine)
