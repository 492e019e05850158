"""Asking the shipped model through kt: greedy answers, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from kt.engine.launch import launch, prepare
from kt.engine.request import Request, Result, Sampling
from kt.machine.survey import survey
from tools.tiny.text import sums
from tools.tiny.text.phrase import say

BATCH = 32
LONGEST_ANSWER = 400


def ask(folder: Path, questions: Sequence[str], variant: str | None = None) -> list[Result]:
    """The greedy answer to each question."""
    machine = survey(gpus=False)
    prepared = prepare(folder, machine, name="tiny", variant=variant, max_batch=BATCH)
    with launch(prepared, warm_up=False) as running:
        sampling = Sampling(temperature=0.0, max_tokens=LONGEST_ANSWER)
        handles = []
        for question in questions:
            ids = running.tokenizer.encode_chat([{"role": "user", "content": question}])
            handles.append(running.engine.submit(Request(ids, sampling)))
        return [handle.result() for handle in handles]


def pairs(count: int) -> list[tuple[int, int]]:
    """Held-out pairs of two-digit numbers."""
    held_out = [(a, b) for a in range(10, 100) for b in range(10, 100) if sums.held_out(a, b)]
    return Random("pairs").sample(held_out, count)


def sums_right(folder: Path, count: int, variant: str | None = None) -> dict[str, float]:
    """The part of `count` held-out sums, and of as many differences, that end in the right number;
    every wording of training in turn.
    """
    asked, right = [], []
    for index, (a, b) in enumerate(pairs(count)):
        high, low = max(a, b), min(a, b)
        asked += [_worded(sums.ADD, index, a, b), _worded(sums.SUBTRACT, index, high, low)]
        right += [a + b, high - low]
    answers = [answer.text for answer in ask(folder, asked, variant)]
    good = [text.endswith(f"= {number}.") for text, number in zip(answers, right, strict=True)]
    return {"sums": sum(good[::2]) / count, "differences": sum(good[1::2]) / count}


def _worded(templates: tuple[str, ...], index: int, a: int, b: int) -> str:
    rng = Random(index)
    template = templates[index % len(templates)]
    return say(rng, template, a=a, b=b, name=rng.choice(sums.NAMES), things=rng.choice(sums.THINGS))
