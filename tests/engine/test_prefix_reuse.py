"""A prefix found in the cache saves work and changes no answer."""

from __future__ import annotations

import random

from kt.engine.request import Request, Sampling
from tests.engine.driving import SMALL, answers, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor


def greedy(prompt: list[int], max_tokens: int = 8) -> Request:
    return Request(prompt, Sampling(max_tokens=max_tokens, temperature=0.0, seed=0))


def test_second_prompt_computes_only_what_is_new() -> None:
    executor = FakeExecutor(**SMALL)
    engine = make_engine(executor)
    with engine:
        first = engine.submit(greedy([1] * 100, max_tokens=1)).result()
        assert (first.finished.cached_tokens, executor.rows_run) == (0, 100)
        again = engine.submit(greedy([1] * 100, max_tokens=1)).result()
        assert again.finished.cached_tokens == 96  # 12 pages of 8
        assert executor.rows_run == 104
        longer = engine.submit(greedy([1] * 100 + [2] * 10, max_tokens=1)).result()
        assert longer.finished.cached_tokens == 96
        other = engine.submit(greedy([2] + [1] * 99, max_tokens=1)).result()
        assert other.finished.cached_tokens == 0
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (410, 192)
    assert ids(first) == ids(again) == expected_ids(greedy([1] * 100, max_tokens=1))
    assert_all_free(engine)


def test_a_page_long_prompt_still_computes_its_last_token() -> None:
    engine = make_engine()
    with engine:
        engine.submit(greedy([1] * 16)).result()
        again = engine.submit(greedy([1] * 16)).result()
    assert again.finished.cached_tokens == 8
    assert ids(again) == expected_ids(greedy([1] * 16))


def test_an_answer_is_found_by_the_next_turn() -> None:
    """The second prompt is the first, its answer and something new, as in a chat."""
    engine = make_engine()
    with engine:
        request = Request([5] * 20, Sampling(max_tokens=30, temperature=0.0, ignore_eos=True))
        answer = ids(engine.submit(request).result())
        turn = greedy([5] * 20 + answer + [6, 6])
        result = engine.submit(turn).result()
    # 49 of the 50 tokens were computed: the last one drawn was not run.
    assert result.finished.cached_tokens == 48
    assert ids(result) == expected_ids(turn)


def test_running_requests_share_pages() -> None:
    """Eight long equal prompts in a pool that could not hold three of them apart."""
    executor = FakeExecutor(**(SMALL | {"n_pages": 36}))
    engine = make_engine(executor, max_batch=8, prefill_chunk=600)
    requests = [greedy([3] * 120, max_tokens=6) for _ in range(8)]
    with engine:
        engine.submit(requests[0]).result()
        executor.batches.clear()
        results = [handle.result() for handle in [engine.submit(r) for r in requests]]
    assert all(ids(result) == expected_ids(requests[0]) for result in results)
    assert [result.finished.cached_tokens for result in results] == [112] * 8
    assert engine.stats().preemptions == 0
    assert_all_free(engine)


def test_eviction_under_pressure_changes_no_answer() -> None:
    rng = random.Random(4)
    prefixes = [[rng.randrange(200) for _ in range(48)] for _ in range(6)]
    requests = [
        greedy([*rng.choice(prefixes)[: rng.choice([8, 24, 48])], rng.randrange(200)])
        for _ in range(60)
    ]
    executor = FakeExecutor(**(SMALL | {"n_pages": 24}))
    engine = make_engine(executor, max_batch=4, prefill_chunk=24)
    for request, result in zip(requests, answers(engine, requests), strict=True):
        assert ids(result) == expected_ids(request, context=192)
    assert engine.stats().cached_tokens > 0
    assert_all_free(engine)


def test_cache_can_be_switched_off() -> None:
    engine = make_engine(prefix_cache=False)
    results = answers(engine, [greedy([1] * 50)] * 2)
    assert [result.finished.cached_tokens for result in results] == [0, 0]
    assert engine.stats().pages_cached == 0
