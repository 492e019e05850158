"""Queue limit, timeouts, bad logits: what one request meets is no other's business."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kt.engine.batch import F32, Batch
from kt.engine.request import InvalidRequest, QueueFull, Request, Sampling
from kt.errors import NotFinite
from tests.engine.driving import SMALL, answers, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor

LONG = Sampling(max_tokens=200, temperature=0.0, seed=0, ignore_eos=True)


def test_a_full_queue_refuses_and_takes_again() -> None:
    executor = FakeExecutor(**SMALL, latency=0.002)
    with make_engine(executor, max_batch=2, max_queue=3) as engine:
        handles = [engine.submit(Request([i], LONG)) for i in range(5)]
        for _ in range(2):
            with pytest.raises(QueueFull) as caught:
                engine.submit(Request([9], LONG))
        assert caught.value.limit == 3
        handles[4].cancel()
        assert handles[4].result().finished.reason == "cancelled"
        late = engine.submit(Request([9], LONG))
        for handle in handles[:4]:
            handle.cancel()
        assert ids(late.result()) == expected_ids(Request([9], LONG))


def test_without_a_queue_free_places_are_taken() -> None:
    engine = make_engine(max_batch=2, max_queue=0)
    handles = [engine.submit(Request([i], LONG)) for i in range(2)]
    with pytest.raises(QueueFull):
        engine.submit(Request([2], LONG))
    with engine:
        assert all(handle.result().finished.reason == "length" for handle in handles)


def test_a_timeout_ends_running_and_waiting_requests() -> None:
    executor = FakeExecutor(**SMALL, latency=0.01)
    with make_engine(executor, max_batch=1) as engine:
        begun = time.monotonic()
        running = engine.submit(Request([1], LONG, timeout=0.3))
        waiting = engine.submit(Request([2], LONG, timeout=0.15))
        in_time = engine.submit(Request([3], Sampling(max_tokens=3), timeout=60.0))
        second = waiting.result()
        assert 0.14 < time.monotonic() - begun < 0.29
        first = running.result()
        assert 0.29 < time.monotonic() - begun < 0.6
        assert in_time.result().finished.reason in ("stop", "length")
    assert second.finished.reason == first.finished.reason == "timeout"
    assert "0.15 seconds" in second.finished.message and second.text == ""
    got = ids(first)
    assert len(got) > 5 and got == expected_ids(Request([1], LONG))[: len(got)]
    assert_all_free(engine)


def test_a_timeout_is_positive() -> None:
    for seconds in (0.0, -1.0):
        with pytest.raises(InvalidRequest, match="timeout"):
            make_engine().submit(Request([1], LONG, timeout=seconds))


class PoisonedExecutor(FakeExecutor):
    """Logits are not finite for sequences that hold a certain token."""

    POISON = 13

    def forward(self, batch: Batch) -> F32:
        logits = super().forward(batch)
        for s in range(len(batch.first_position)):
            length = int(batch.first_position[s]) + int(np.diff(batch.seq_start)[s])
            held = self._tokens[batch.page_table[s]].reshape(-1)[:length]
            if self.POISON in held:
                raise NotFinite("a logit is not finite")
        return logits


@pytest.mark.parametrize("position", [0, 3, 7])
def test_bad_logits_end_only_their_own_request(position: int) -> None:
    sampling = Sampling(
        max_tokens=20,
        temperature=0.0,
        seed=0,
        ignore_eos=True,
        logit_bias={PoisonedExecutor.POISON: -100.0},
    )
    requests = [Request([20 + i] * 20, sampling) for i in range(8)]
    requests[position] = Request([5] * 9 + [PoisonedExecutor.POISON] + [5] * 10, sampling)
    engine = make_engine(PoisonedExecutor(**SMALL), max_batch=8)
    results = answers(engine, requests)
    for i, (request, result) in enumerate(zip(requests, results, strict=True)):
        if i == position:
            assert result.finished.reason == "error" and "finite" in result.finished.message
        else:
            assert ids(result) == expected_ids(request)
    assert engine.stats().failures == 1
    assert_all_free(engine)


def test_pages_with_bad_contents_are_not_found_again() -> None:
    prompt = [PoisonedExecutor.POISON] + [5] * 40
    with make_engine(PoisonedExecutor(**SMALL), prefill_chunk=16) as engine:
        first = engine.submit(Request(prompt, LONG)).result()
        assert engine.stats().pages_cached == 0
    assert first.finished.reason == "error"
