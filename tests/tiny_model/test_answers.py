"""What tiny answers to twenty fixed questions, and to sums that training never showed."""

from __future__ import annotations

import json

import pytest

from kt.tokenizer import Tokenizer
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE
from tests.tiny_model.questions import (
    ANSWERS,
    DEFINITIONS,
    EXACT,
    FUNCTIONS,
    QUESTIONS,
    SHORT,
    STORIES,
    TINY,
    answers,
)
from tools.tiny import asking
from tools.tiny.text import machines, stories

FROZEN: dict[str, dict[str, list[int]]] = json.loads(ANSWERS.read_text())
NAMES = {name for _, _, names in stories.PEOPLE for name in names}


def texts(variant: str) -> dict[str, str]:
    """The frozen answers of `variant` as text."""
    tokenizer = Tokenizer.load(open_checkpoint(TINY))
    return {question: tokenizer.decode(ids) for question, ids in FROZEN[variant].items()}


@pytest.mark.parametrize("variant", NATIVE)
def test_each_variant_gives_exactly_these_tokens(variant: str) -> None:
    assert answers(QUESTIONS, variant) == FROZEN[variant]


def test_the_tile_model_gives_exactly_these_tokens() -> None:
    assert answers(SHORT, "amx_model") == FROZEN["amx_model"]


@pytest.fixture(params=FROZEN)
def said(request) -> dict[str, str]:
    """The answers of every variant that was frozen, whatever this CPU runs."""
    return texts(request.param)


def test_there_are_twenty_questions() -> None:
    assert len(set(QUESTIONS)) == 20


def test_questions_with_one_right_answer(said) -> None:
    for question in EXACT.keys() & said.keys():
        assert said[question] in EXACT[question]


def test_definitions_consist_of_true_sentences(said) -> None:
    topics = {names[0]: (definitions, more) for names, definitions, more in machines.TOPICS}
    for question in DEFINITIONS.keys() & said.keys():
        definitions, more = topics[DEFINITIONS[question]]
        true = {*definitions, *(f"{first} {then}" for first in definitions for then in more)}
        assert said[question] in true


def test_functions_run(said) -> None:
    for question in FUNCTIONS.keys() & said.keys():
        _, code, _ = said[question].split("```")
        scope: dict[str, object] = {}
        exec(code.removeprefix("python\n"), scope)
        call, result = FUNCTIONS[question]
        assert eval(call, scope) == result


def test_stories_are_about_what_was_asked_and_end(said) -> None:
    for question in STORIES.keys() & said.keys():
        paragraphs = said[question].split("\n\n")
        if paragraphs[-1] in stories.CLOSINGS:
            paragraphs.pop()
        assert all(word in said[question] for word in STORIES[question])
        assert 3 <= len(paragraphs) <= 4
        assert all(paragraph.endswith((".", '."')) for paragraph in paragraphs)
        # The same two are in it from the beginning to the end.
        first, last = (
            {name for name in NAMES if name in p} for p in (said[question], paragraphs[-1])
        )
        assert len(first) == 2
        assert last & first


def test_sums_of_pairs_that_training_never_showed() -> None:
    right = asking.sums_right(TINY, 100, NATIVE[0])
    assert right["sums"] > 0.9
    assert right["differences"] > 0.9
