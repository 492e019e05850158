"""Prompt lookup on the real weights: the same tokens as plain greedy decoding, in fewer steps."""

from __future__ import annotations

import pytest

from kt.engine.engine import Engine
from kt.engine.request import Request, Sampling
from kt.tokenizer import Tokenizer
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE, SMOLLM2, executor

pytestmark = pytest.mark.model

TASKS = (
    "List the planets.", "Count from one to fifty.", "Say hello ten times.", "Name ten colours.",
    "Write a poem that repeats the line 'rain again'.", "Explain recursion.", "Write a haiku.",
    "Write a Python function that adds numbers and call it five times.", "Describe a forest.",
    "Repeat: tick tock tick tock tick tock", "Tell a short story about a cat.", "Who was Newton?",
    "Write JSON with ten users.", "What is 2+2?", "Translate 'good morning' to French.",
    "Give a recipe for pancakes.", "Write the alphabet twice.", "Write an HTML table.",
    "Summarise: the cat sat on the mat. the cat sat on the mat.", "Write SQL for three tables.",
)  # fmt: skip


def test_twenty_answers_are_those_of_plain_greedy_decoding() -> None:
    tokenizer = Tokenizer.load(open_checkpoint(SMOLLM2))
    requests = [
        Request(
            tokenizer.encode_chat([{"role": "user", "content": task}]),
            Sampling(max_tokens=40, temperature=0.0),
        )
        for task in TASKS
    ]
    made = executor(SMOLLM2, NATIVE[0], pages=256)
    answers = []
    try:
        for speculate in (None, "ngram"):
            # One after another first, then all at once: other rows are no reason for other numbers.
            for together in (1, len(requests))[speculate is None :]:
                engine = Engine(
                    made, tokenizer, model_name="m", speculate=speculate, max_batch=together
                )
                with engine:
                    handles = [engine.submit(request) for request in requests]
                    results = [handle.result() for handle in handles]
                answers.append([[token.id for token in result.tokens] for result in results])
                stats = engine.stats()
                assert (stats.draft_accepted > 20) == (speculate == "ngram")
    finally:
        made.close()
    assert answers[1] == answers[0] and answers[2] == answers[0]
    assert sum(map(len, answers[0])) > 400
