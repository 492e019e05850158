"""Whatever runs beside it, however it is cut into chunks: a request gets its own answer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kt.engine.request import Request, Sampling
from tests.engine.driving import (
    SMALL,
    answers,
    assert_all_free,
    expected_ids,
    ids,
    make_engine,
    random_request,
)
from tests.fakes import FakeExecutor


@pytest.mark.parametrize("prefill_chunk", [1, 7, 64, 512])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_batched_answers_equal_solo_answers(prefill_chunk: int, prefix_cache: bool) -> None:
    rng = random.Random(prefill_chunk)
    requests = [random_request(rng) for _ in range(24)]
    engine = make_engine(max_batch=8, prefill_chunk=prefill_chunk, prefix_cache=prefix_cache)
    for request, result in zip(requests, answers(engine, requests), strict=True):
        assert ids(result) == expected_ids(request)
        assert result.finished.reason in ("stop", "length")
        assert result.finished.prompt_tokens == len(request.prompt_ids)
        ended = result.finished.reason == "stop"
        assert result.finished.completion_tokens == len(result.tokens) + ended
    assert_all_free(engine)


@pytest.mark.parametrize("seed", range(6))
def test_few_pages_preempt_and_change_nothing(seed: int) -> None:
    """14 pages of 8 tokens for 6 sequences of up to 111 tokens: many are computed again."""
    rng = random.Random(seed)
    requests = [
        replace(r, sampling=replace(r.sampling, max_tokens=60, ignore_eos=True))
        for r in (random_request(rng, longest=40) for _ in range(10))
    ]
    executor = FakeExecutor(**(SMALL | {"n_pages": 14}))
    engine = make_engine(executor, max_batch=6, prefill_chunk=32, prefix_cache=seed % 2 == 0)
    results = answers(engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert ids(result) == expected_ids(request, context=112)
    assert engine.stats().preemptions > 0
    assert_all_free(engine)


def test_a_step_never_exceeds_its_budget_and_decodes_ride_along() -> None:
    """Three decoding streams and a long prompt: 3 + 16 rows a step until the prompt is done."""
    executor = FakeExecutor(**SMALL)
    engine = make_engine(executor, max_batch=4, prefill_chunk=16)
    short = Request([1], Sampling(max_tokens=60, temperature=0.0, ignore_eos=True))
    long = Request([2] * 160, Sampling(max_tokens=3, temperature=0.0, ignore_eos=True))
    answers(engine, [short, short, short, long])
    assert executor.batches[0] == 16  # three prompts of one token and 13 tokens of the long one
    assert executor.batches[1:10] == [3 + 16] * 9
    assert executor.batches[10] == 3 + 3
    assert executor.batches[11:13] == [4, 4]
    assert max(executor.batches) <= 19


def test_first_come_first_served() -> None:
    """One at a time, the shortest last: each waits for those before it."""
    requests = [
        Request([i], Sampling(max_tokens=12 - 2 * i, temperature=0.0, ignore_eos=True))
        for i in range(5)
    ]
    queues = [r.finished.timings.queue for r in answers(make_engine(max_batch=1), requests)]
    assert queues == sorted(queues) and len(set(queues)) == 5


def test_one_seed_gives_one_text_and_no_seed_gives_many() -> None:
    fixed = Request([5, 6], Sampling(max_tokens=12, seed=42, ignore_eos=True))
    free = Request([5, 6], Sampling(max_tokens=12, ignore_eos=True))
    results = answers(make_engine(max_batch=8), [fixed, fixed, free, free])
    texts = [tuple(ids(result)) for result in results]
    assert texts[0] == texts[1]
    assert len({texts[0], texts[2], texts[3]}) == 3


def test_an_answer_ends_where_the_context_does() -> None:
    request = Request([3] * 250, Sampling(temperature=0.0, ignore_eos=True, seed=0))
    [result] = answers(make_engine(), [request])
    assert result.finished.reason == "length"
    assert result.finished.completion_tokens == 6
    assert ids(result) == expected_ids(request)
