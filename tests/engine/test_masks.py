"""Masks are those that llguidance computes by itself, complete when the pass is over."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kt.engine.grammar import Constraint, GrammarCompiler
from kt.engine.masks import Masks
from kt.engine.request import Grammar
from tests.fakes import END, VOCAB, FakeTokenizer

PATTERNS = ("[ab]{2}x", "[0-9]+", ".*", "yes|no")


@pytest.fixture
def constraints() -> list[Constraint]:
    compiler = GrammarCompiler(FakeTokenizer(), VOCAB, {END})
    return [compiler.constraint(Grammar("regex", pattern)) for pattern in PATTERNS]


@pytest.fixture
def masks():
    made = Masks(8, VOCAB)
    yield made
    made.close()


def allowed(words: np.ndarray) -> list[int]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=VOCAB)
    return np.flatnonzero(bits).tolist()


def test_every_constraint_has_its_own(masks: Masks, constraints: list[Constraint]) -> None:
    with masks.of(constraints):
        pass
    first = [allowed(c.mask) for c in constraints]
    assert first[0] == [*b"ab"]
    assert first[1] == [*b"0123456789"]
    assert END in first[2] and len(first[2]) > 150
    assert first[3] == [*b"ny"]
    constraints[0].accept(ord("b"))
    constraints[0].accept(ord("a"))
    constraints[1].accept(ord("7"))
    with masks.of(constraints[1::-1]):
        pass
    assert allowed(constraints[0].mask) == [*b"x"]
    assert allowed(constraints[1].mask) == [*b"0123456789", END]
    for constraint in constraints[:2]:
        own = np.frombuffer(constraint.matcher.compute_bitmask(), np.uint32)
        assert allowed(constraint.mask) == allowed(own)


def test_they_are_computed_meanwhile_and_complete_after_a_failure(
    masks: Masks, constraints: list[Constraint], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()
    fill = Masks._fill

    def slow(self: Masks, matchers: list[object]) -> None:
        began.set()
        assert may_end.wait(10)
        time.sleep(0.02)
        fill(self, matchers)

    monkeypatch.setattr(Masks, "_fill", slow)
    with pytest.raises(KeyError, match="the pass"):
        with masks.of(constraints):
            assert began.wait(10)  # the pass goes on while they are computed
            may_end.set()
            raise KeyError("the pass failed")
    assert allowed(constraints[3].mask) == [*b"ny"]


def test_a_broken_one_allows_all_and_tells_with_the_next_token(
    masks: Masks, constraints: list[Constraint]
) -> None:
    broken, good = constraints[1], constraints[0]
    assert not broken.matcher.consume_tokens([ord("x")])
    with masks.of([broken, good]):
        pass
    assert len(allowed(broken.mask)) == VOCAB
    assert allowed(good.mask) == [*b"ab"]
    with pytest.raises(Exception, match="in the middle of an answer"):
        broken.accept(ord("1"))
