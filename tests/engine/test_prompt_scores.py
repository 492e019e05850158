"""Log probabilities of the prompt are those of one pass over it, however it was cut."""

from __future__ import annotations

import numpy as np
import pytest

from kt.engine.batch import Batch
from kt.engine.request import InvalidRequest, Request, Result, Sampling
from tests.engine.driving import SMALL, answers, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor
from tests.sampling_oracle import F64, log_softmax

PROMPT = [7, 9, 7, 7, 65, 66, 0xC3, 0xA4, 7] * 6


def whole_prompt(prompt: list[int]) -> list[F64]:
    """Log probabilities behind every token of the prompt, from one pass."""
    n = len(prompt)
    executor = FakeExecutor(page_tokens=1, n_pages=n, max_logits=n)
    batch = Batch(
        tokens=np.array(prompt, np.int32),
        seq_start=np.array([0, n], np.int32),
        first_position=np.zeros(1, np.int32),
        page_table=np.arange(n, dtype=np.int32).reshape(1, n),
        logit_rows=np.arange(n, dtype=np.int32),
    )
    return [log_softmax(row) for row in executor.forward(batch)]


def check(result: Result, prompt: list[int], n_best: int) -> None:
    assert [token.id for token in result.prompt] == prompt
    assert result.prompt[0].logprob is None and result.prompt[0].best == ()
    for token, expected in zip(result.prompt[1:], whole_prompt(prompt), strict=False):
        assert token.logprob == pytest.approx(expected[token.id], abs=1e-6)
        order = np.lexsort((np.arange(len(expected)), -expected))[:n_best]
        assert [i for i, _ in token.best] == order.tolist()
        np.testing.assert_allclose([v for _, v in token.best], expected[order], atol=1e-6)


def scored(prompt: list[int], n_best: int = 2, **changes: object) -> Request:
    values = {"max_tokens": 6, "temperature": 0.0, "seed": 0, "prompt_logprobs": n_best}
    return Request(prompt, Sampling(**(values | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("max_logits", [1, 2, 5, 300])
@pytest.mark.parametrize("chunk", [3, 512])
def test_every_cut_gives_the_same(max_logits: int, chunk: int) -> None:
    executor = FakeExecutor(**SMALL, max_logits=max_logits)
    engine = make_engine(executor, prefill_chunk=chunk, max_batch=4)
    request = scored(PROMPT)
    [result] = answers(engine, [request])
    check(result, PROMPT, 2)
    assert ids(result) == expected_ids(request)
    assert_all_free(engine)


def test_beside_others_and_with_equal_prompts() -> None:
    requests = [
        scored(PROMPT, 0),
        Request(PROMPT, Sampling(max_tokens=9, temperature=0.0, seed=0)),
        scored(PROMPT, 3),
        scored(PROMPT[:1], 1),
        scored(PROMPT[:2], 1),
    ]
    executor = FakeExecutor(**SMALL, max_logits=9)
    results = answers(make_engine(executor, max_batch=8), requests)
    assert [ids(result) for result in results] == [expected_ids(r) for r in requests]
    for result, request in zip(results, requests, strict=True):
        n_best = request.sampling.prompt_logprobs
        if n_best is None:
            assert result.prompt == []
        else:
            check(result, request.prompt_ids, n_best)
            assert result.finished.cached_tokens == 0


def test_they_do_not_come_from_the_prefix_cache_but_fill_it() -> None:
    with make_engine() as engine:
        first = engine.submit(Request(PROMPT, Sampling(max_tokens=2, temperature=0))).result()
        again = engine.submit(scored(PROMPT)).result()
        third = engine.submit(Request(PROMPT, Sampling(max_tokens=2, temperature=0))).result()
    assert first.finished.cached_tokens == again.finished.cached_tokens == 0
    assert third.finished.cached_tokens == 48
    check(again, PROMPT, 2)


def test_without_an_answer() -> None:
    engine = make_engine()
    requests = [scored(PROMPT, max_tokens=0), scored(PROMPT[:1], max_tokens=0)]
    for result, request in zip(answers(engine, requests), requests, strict=True):
        check(result, request.prompt_ids, 2)
        assert (result.text, result.tokens) == ("", [])
        assert (result.finished.reason, result.finished.completion_tokens) == ("length", 0)
    assert_all_free(engine)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        engine.submit(Request([1], Sampling(max_tokens=0)))


def test_texts_of_a_character_in_two_tokens() -> None:
    [result] = answers(make_engine(), [scored(PROMPT)])
    assert "".join(token.text for token in result.prompt) == "\x07\t\x07\x07ABä\x07" * 6
    assert [t.text for t in result.prompt[6:8]] == ["", "ä"]


def test_preempted_in_the_middle() -> None:
    """Two old answers grow until the scored prompt, the latest, must give up its pages."""
    grow = Sampling(max_tokens=60, temperature=0.0, seed=0, ignore_eos=True)
    requests = [Request([1] * 8, grow), Request([2] * 8, grow), scored(PROMPT)]
    executor = FakeExecutor(
        context=128, page_tokens=8, n_pages=17, max_batch_tokens=64, max_logits=3
    )
    engine = make_engine(executor, max_batch=3)
    results = answers(engine, requests)
    assert engine.stats().preemptions > 0
    check(results[2], PROMPT, 2)
    assert [ids(r) for r in results] == [expected_ids(q, context=128) for q in requests]
    assert_all_free(engine)
