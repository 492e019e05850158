"""Prompt lookup: what is guessed, and that guesses never change an answer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kt.engine.draft import Drafter
from kt.engine.request import Request, Sampling
from tests.engine.driving import SMALL, answers, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import END, FakeExecutor, replying


def propose(history: list[int], room: int = 100) -> tuple[int, ...]:
    return Drafter().propose(np.array(history, np.int32), room)


@pytest.mark.parametrize(
    "history, expected",
    [
        ([], ()),
        ([1], ()),
        ([1, 2, 3], ()),
        ([1, 2, 3, 9, 8, 7, 6, 5, 1, 2, 3], (9, 8, 7, 6, 5)),
        ([1, 2, 3, 9, 1, 2, 3, 8, 7, 1, 2, 3], (8, 7, 1, 2, 3)),  # the last place counts
        ([4, 2, 3, 9, 8, 7, 6, 5, 2, 3], (9, 8, 7, 6, 5)),  # two tokens, if three never occurred
        ([1, 2, 3, 5, 7, 2, 3, 6, 8, 1, 2, 3], (5, 7, 2, 3, 6)),  # three are better than two
        ([7, 7, 7], (7, 7, 7, 7, 7)),  # a repetition goes on
        ([1, 2, 1, 2, 1], (2, 1, 2, 1, 2)),
    ],
)
def test_what_followed_the_last_equal_place(history: list[int], expected: tuple[int, ...]) -> None:
    assert propose(history) == expected


def test_room_bounds_the_guesses() -> None:
    assert propose([7] * 9, room=2) == (7, 7)
    assert propose([7] * 9, room=0) == ()


def test_success_lengthens_and_failure_shortens() -> None:
    drafter, history = Drafter(), np.full(50, 7, np.int32)
    lengths = []
    for accepted in (True, True, False, False, False, False, True):
        count = len(drafter.propose(history, 100))
        lengths.append(count)
        drafter.learn(count, count if accepted else 0)
    assert lengths == [5, 11, 11, 5, 2, 1, 1]
    assert len(drafter.propose(history, 100)) == 3


def varied(rng: random.Random) -> Request:
    length = rng.randint(1, 60)
    return Request(
        [rng.choice((65, 66)) for _ in range(length)],
        Sampling(
            max_tokens=rng.randint(1, 60),
            temperature=rng.choice([0.0, 0.0, 0.0, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            seed=rng.randrange(1000),
            min_tokens=rng.choice([0, 10]),
            ignore_eos=rng.random() < 0.3,
            logit_bias=rng.choice([{}, {65: 6.0}, {65: 6.0, 66: 6.0}]),
        ),
    )


@pytest.mark.parametrize("max_logits", [8, 12, 64])
@pytest.mark.parametrize("n_pages", [512, 40])
def test_answers_are_those_without_guesses(max_logits: int, n_pages: int) -> None:
    rng = random.Random(max_logits + n_pages)
    requests = [varied(rng) for _ in range(40)]
    executor = FakeExecutor(
        context=256, page_tokens=8, n_pages=n_pages, max_batch_tokens=60, max_logits=max_logits
    )
    engine = make_engine(executor, max_batch=8, speculate="ngram")
    results = answers(engine, requests)
    assert [ids(result) for result in results] == [expected_ids(r) for r in requests]
    stats = engine.stats()
    assert 0 < stats.draft_accepted < stats.draft_tokens
    assert_all_free(engine)


def test_a_repetitive_answer_takes_few_steps() -> None:
    text = "the same words again and again; " * 12
    reply = replying(text)
    sampling = Sampling(max_tokens=len(text), temperature=0.0)
    executor = FakeExecutor(**(SMALL | {"context": 512}), reply=reply)
    engine = make_engine(executor, speculate="ngram")
    [result] = answers(engine, [Request([259], sampling)])
    assert result.text == text
    assert len(executor.batches) < len(text) / 5
    assert result.finished.completion_tokens == len(text)


def test_an_end_or_a_stop_among_the_guesses_ends_the_answer() -> None:
    """The history holds what follows; the answer still ends where it must."""
    text = "abcabcabcabc"
    executor = FakeExecutor(**SMALL, reply=replying(text))
    engine = make_engine(executor, speculate="ngram")
    prompt = [*(text + "abc").encode(), 259]
    sampling = Sampling(max_tokens=100, temperature=0.0)
    [whole] = answers(engine, [Request(prompt, sampling)])
    assert (whole.text, whole.finished.reason) == (text, "stop")
    assert whole.finished.completion_tokens == len(text) + 1 and END not in ids(whole)
    engine = make_engine(FakeExecutor(**SMALL, reply=replying(text)), speculate="ngram")
    stopping = Sampling(max_tokens=100, temperature=0.0, stop=("bcab",))
    [cut] = answers(engine, [Request(prompt, stopping)])
    assert (cut.text, cut.finished.stop) == ("a", "bcab")
    assert_all_free(engine)


def test_length_and_logprobs_are_those_without_guesses() -> None:
    executor = FakeExecutor(**SMALL, reply=replying("xyxyxyxyxyxyxyxy" * 4))
    sampling = Sampling(max_tokens=33, temperature=0.0, logprobs=3)
    request = Request([259], sampling)
    [guessed] = answers(make_engine(executor, speculate="ngram"), [request])
    plain_executor = FakeExecutor(**SMALL, reply=replying("xyxyxyxyxyxyxyxy" * 4))
    [plain] = answers(make_engine(plain_executor), [request])
    assert guessed.tokens == plain.tokens and guessed.finished.completion_tokens == 33
    assert len(executor.batches) < len(plain_executor.batches)


def test_the_context_is_filled_to_its_end() -> None:
    executor = FakeExecutor(context=40, page_tokens=8, n_pages=5, max_batch_tokens=64)
    engine = make_engine(executor, speculate="ngram", max_batch=2)
    sampling = Sampling(temperature=0.0, ignore_eos=True, logit_bias={65: 100.0})
    [result] = answers(engine, [Request([65] * 10, sampling)])
    assert ids(result) == [65] * 30 and result.finished.reason == "length"
