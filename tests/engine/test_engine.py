"""The engine as a service: refusals, failures, closing, idling, many clients, small overhead."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from kt.engine.batch import Batch
from kt.engine.engine import Engine
from kt.engine.request import (
    ContextTooLong,
    Delta,
    EngineClosed,
    Finished,
    InvalidRequest,
    Request,
    Sampling,
)
from kt.errors import KtError
from tests.engine.driving import (
    SMALL,
    answers,
    assert_all_free,
    expected_ids,
    ids,
    make_engine,
    whole,
)
from tests.fakes import ASSISTANT, VOCAB, FakeExecutor, FakeTokenizer, replying
from tests.sampling_oracle import log_softmax

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=0)

# ---- refusals


def test_a_prompt_too_long_is_refused_with_both_numbers() -> None:
    engine = make_engine()
    with pytest.raises(ContextTooLong, match=r"256 tokens.*holds 256") as caught:
        engine.submit(Request([1] * 256))
    assert (caught.value.prompt_tokens, caught.value.limit) == (256, 256)
    engine.submit(Request([1] * 255))
    engine.close()


def test_the_pages_may_be_the_limit() -> None:
    engine = make_engine(FakeExecutor(**(SMALL | {"n_pages": 3})))
    assert engine.limit == 24
    with pytest.raises(ContextTooLong, match=r"24 tokens.*holds 24"):
        engine.submit(Request([1] * 24))
    [result] = answers(engine, [Request([1] * 20, Sampling(ignore_eos=True))])
    assert (result.finished.reason, result.finished.completion_tokens) == ("length", 4)


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", 1e9),
        ("stop", ("a", "")),
        ("logprobs", 21),
        ("min_tokens", -1),
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: float("inf")}),
    ],
)
def test_values_outside_their_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field):
        make_engine().submit(Request([1], Sampling(**{field: value})))


@pytest.mark.parametrize("prompt", [[], [-1], [VOCAB]])
def test_prompts_without_meaning_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        make_engine().submit(Request(prompt))


# ---- failures


def failing(token: int, error: Exception) -> FakeExecutor:
    def fail(batch: Batch) -> None:
        if token in batch.tokens:
            raise error

    return FakeExecutor(fail=fail, **SMALL)


@pytest.mark.parametrize(
    "error, message",
    [(KtError("a logit is not finite"), "a logit is not finite"), (ZeroDivisionError("x"), "x")],
)
def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(
    error: Exception, message: str
) -> None:
    engine = make_engine(failing(13, error), max_batch=2, prefill_chunk=8)
    bad, good = Request([1] * 20 + [13], GREEDY), Request([1] * 20, GREEDY)
    with engine:
        result = engine.submit(bad).result()
        assert result.finished.reason == "error" and message in result.finished.message
        assert ids(engine.submit(good).result()) == expected_ids(good)
    assert engine.stats().failures == 1
    assert_all_free(engine)


def test_requests_outside_the_failing_step_are_untouched() -> None:
    engine = make_engine(failing(13, KtError("no")), max_batch=1)
    good = Request([5], GREEDY)
    results = answers(engine, [Request([13], GREEDY), good, Request([13], GREEDY), good])
    assert [r.finished.reason for r in results].count("error") == 2
    assert ids(results[1]) == ids(results[3]) == expected_ids(good)


def test_a_failing_detokenizer_ends_its_own_request_only() -> None:
    class Broken(FakeTokenizer):
        count = 0

        def detokenizer(self, skip_special: bool = True, shown: tuple[str, ...] = ()) -> Any:
            Broken.count += 1
            good = super().detokenizer()
            if Broken.count == 1:
                good.push = lambda token: 1 / 0  # type: ignore[method-assign, assignment, return-value]
            return good

    engine = Engine(FakeExecutor(**SMALL), Broken(), model_name="broken")
    request = Request([5], GREEDY)
    broken, whole = answers(engine, [request, request])
    assert broken.finished.reason == "error"
    assert ids(whole) == expected_ids(request)
    assert_all_free(engine)


# ---- closing


def test_close_lets_streams_finish() -> None:
    engine = make_engine(FakeExecutor(latency=0.002, **SMALL))
    engine.start()
    request = Request([5], Sampling(max_tokens=20, temperature=0.0, seed=0, ignore_eos=True))
    handles = [engine.submit(request) for _ in range(3)]
    engine.close(timeout=10)
    assert all(ids(handle.result()) == expected_ids(request) for handle in handles)
    with pytest.raises(EngineClosed):
        engine.submit(request)


def test_close_cancels_what_takes_too_long() -> None:
    executor = FakeExecutor(latency=0.02, **SMALL)
    engine = make_engine(executor, max_batch=1)
    engine.start()
    endless = Request([5], Sampling(temperature=0.0, ignore_eos=True))
    handles = [engine.submit(endless) for _ in range(3)]
    next(iter(handles[0]))
    begun = time.monotonic()
    engine.close(timeout=0.05)
    assert time.monotonic() - begun < 1.0
    for handle in handles:
        end = handle.result().finished
        assert end.reason == "cancelled" and "shutting down" in end.message
    assert_all_free(engine)
    assert not executor.closed


def test_close_before_start_answers_everyone() -> None:
    engine = make_engine()
    handle = engine.submit(Request([1]))
    engine.close()
    assert handle.result().finished.reason == "cancelled"
    engine.close()


# ---- events


def test_events_carry_tokens_logprobs_and_timings() -> None:
    executor = FakeExecutor(reply=replying("abc"), **SMALL)
    engine = make_engine(executor)
    request = Request([1, ASSISTANT], Sampling(temperature=0.0, logprobs=3))
    handle = engine.submit(request)
    with engine:
        *deltas, end = list(handle)
        assert list(handle) == []
    assert [d.text for d in deltas if isinstance(d, Delta)] == ["a", "b", "c"]
    fresh = FakeExecutor(reply=replying("abc"), page_tokens=1)
    expected = log_softmax(whole(fresh, [1, ASSISTANT]))
    assert isinstance(deltas[0], Delta)
    token = deltas[0].tokens[0]
    assert (token.id, token.text) == (97, "a")
    assert token.logprob == pytest.approx(expected[97])
    assert [i for i, _ in token.best] == np.argsort(-expected)[:3].tolist()
    assert isinstance(end, Finished)
    assert (end.prompt_tokens, end.completion_tokens, end.reason) == (2, 4, "stop")
    assert min(end.timings.queue, end.timings.prefill, end.timings.decode) > 0


def test_asyncio_consumers_get_the_same_events() -> None:
    engine = make_engine(max_batch=4)
    requests = [Request([i] * 9, GREEDY) for i in range(8)]

    async def consume(request: Request) -> list[int]:
        found = []
        async for event in engine.submit(request):
            if isinstance(event, Delta):
                found += [token.id for token in event.tokens]
        return found

    async def main() -> list[list[int]]:
        return await asyncio.gather(*map(consume, requests))

    with engine:
        assert asyncio.run(main()) == [expected_ids(request) for request in requests]


def test_a_consumer_whose_loop_is_gone_does_not_hurt() -> None:
    executor = FakeExecutor(latency=0.01, **SMALL)
    engine = make_engine(executor)

    async def leave() -> None:
        handle = engine.submit(Request([1], GREEDY))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.__anext__(), 0.001)

    with engine:
        asyncio.run(leave())
        request = Request([2], GREEDY)
        assert ids(engine.submit(request).result()) == expected_ids(request)
    assert engine.stats().failures == 0


def test_fifty_threads_get_their_own_answers() -> None:
    engine = make_engine(max_batch=8, prefill_chunk=32)
    wrong: list[int] = []

    def client(i: int) -> None:
        request = Request([i % 7] * (1 + i), GREEDY)
        if ids(engine.submit(request).result()) != expected_ids(request):
            wrong.append(i)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(50)]
    with engine:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert engine.stats().requests == 50
    assert_all_free(engine)
