"""Long prompts beside running answers, equal prompts beside each other."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from kt.engine import pace
from kt.engine.request import Delta, Request, Sampling
from tests.engine.driving import SMALL, answers, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=0, ignore_eos=True)


@pytest.mark.parametrize(
    "fixed, per_token, most, expected",
    [
        (0.0, 0.0001, 512, 512),  # 51 ms: all
        (0.0, 0.001, 512, 192),  # 200 tokens, whole units of 32
        (0.1, 0.001, 512, 96),  # 100 ms are left
        (0.5, 0.001, 1024, 480),  # twice the fixed time
        (5.0, 0.001, 512, 512),  # reading the weights costs more than 512 tokens
        (0.0, 1.0, 512, 32),  # never less
        (0.0, 1.0, 20, 20),
    ],
)
def test_the_chunk_follows_from_two_times(
    fixed: float, per_token: float, most: int, expected: int
) -> None:
    chunk = pace.choose(fixed, per_token, most)
    assert chunk.value == expected
    assert "measured" in chunk.reason


def test_a_long_prompt_stops_running_answers_for_one_chunk_only() -> None:
    """1 ms a token: a prompt of 4,000 takes over 4 s, and every pause is about 200 ms or less."""
    sizes = {"context": 4096, "page_tokens": 32, "n_pages": 600, "max_batch_tokens": 520}
    executor = FakeExecutor(**sizes, token_latency=0.001)
    engine = make_engine(executor, max_batch=8)
    engine.warm_up()
    chunk = engine.stats().prefill_chunk
    assert 96 <= chunk.value <= 192 and "ms a token" in chunk.reason
    executor.batches.clear()
    sampling = Sampling(max_tokens=4000, temperature=0.0, seed=0, ignore_eos=True)
    arrivals: list[float] = []
    with engine:
        stream = engine.submit(Request([1], sampling))
        reader = threading.Thread(
            target=lambda: arrivals.extend(time.monotonic() for e in stream if isinstance(e, Delta))
        )
        reader.start()
        time.sleep(0.05)
        begun = time.monotonic()
        long = engine.submit(Request([2] * 3999, Sampling(max_tokens=2, seed=0)))
        long.result()
        ended = time.monotonic()
        stream.cancel()
        reader.join()
    assert ended - begun > 4
    assert max(executor.batches) <= chunk.value + 8
    during = [at for at in arrivals if begun < at < ended]
    pauses = [later - earlier for earlier, later in itertools.pairwise(during)]
    assert len(during) >= 3999 // chunk.value  # a token with every chunk
    assert max(pauses) < 0.4


def test_a_prompt_alone_uses_whole_steps() -> None:
    executor = FakeExecutor(**SMALL, token_latency=0.002)
    engine = make_engine(executor)
    engine.warm_up()
    assert engine.stats().prefill_chunk.value < 200
    executor.batches.clear()
    [result] = answers(engine, [Request([3] * 240, GREEDY)])
    assert executor.batches[0] == 240
    assert result.finished.completion_tokens == 8


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    prompt = [5, 6] * 50
    requests = [
        Request(prompt, Sampling(max_tokens=6, temperature=1.0, seed=seed)) for seed in range(6)
    ]
    executor = FakeExecutor(**SMALL)
    engine = make_engine(executor, max_batch=8)
    results = answers(engine, requests)
    assert [ids(result) for result in results] == [expected_ids(r) for r in requests]
    assert [r.finished.cached_tokens for r in results] == [0] + [96] * 5
    outputs = sum(result.finished.completion_tokens for result in results)
    assert executor.rows_run <= 100 + 5 * 4 + outputs
    assert_all_free(engine)


def test_a_shared_start_is_waited_for_but_not_more() -> None:
    """The second prompt starts when the first has computed what they share, not when it is done;
    a third that shares nothing does not wait.
    """
    executor = FakeExecutor(**SMALL)
    engine = make_engine(executor, prefill_chunk=40, max_batch=4)
    first = Request([5] * 64 + [6] * 150, GREEDY)
    second = Request([5] * 64 + [7] * 10, GREEDY)
    third = Request([8] * 10, GREEDY)
    results = answers(engine, [first, second, third])
    assert [ids(result) for result in results] == [expected_ids(r) for r in (first, second, third)]
    assert [r.finished.cached_tokens for r in results] == [0, 64, 0]


def test_who_waits_for_a_prefix_goes_on_when_its_owner_leaves() -> None:
    executor = FakeExecutor(**SMALL, latency=0.02)
    with make_engine(executor, prefill_chunk=16, max_batch=4) as engine:
        owner = engine.submit(Request([5] * 200, GREEDY))
        follower = engine.submit(Request([5] * 200, GREEDY))
        time.sleep(0.1)
        owner.cancel()
        assert owner.result().finished.reason == "cancelled"
        result = follower.result()
    assert ids(result) == expected_ids(Request([5] * 200, GREEDY))
    assert 0 < result.finished.cached_tokens < 200
    assert_all_free(engine)
