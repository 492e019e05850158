"""`kt chat` without a server: the engine in the same process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kt.chat import local
from kt.chat.client import Measures, Thought
from kt.chat.session import Session
from kt.engine.engine import Engine
from kt.errors import KtError
from kt.server.sampling_defaults import SamplingDefaults
from tests.fakes import FakeExecutor, replying
from tests.server.harness import TextTokenizer


@contextmanager
def chat(
    reply: str, template: str = "", defaults: SamplingDefaults | None = None, **fake: object
) -> Iterator[tuple[Session, Engine]]:
    """A conversation with an engine that always says `reply`."""
    tokenizer = TextTokenizer(template)
    executor = FakeExecutor(reply=replying(reply), **fake)
    with Engine(executor, tokenizer, model_name="fake-1b", max_batch=1) as engine:
        plan = SimpleNamespace(context=SimpleNamespace(value=1024))
        running = SimpleNamespace(tokenizer=tokenizer, engine=engine, plan=plan)
        answers = local.Local(running, "fake-1b", defaults or SamplingDefaults())
        yield Session(answers, answers.model(), options={"max_tokens": 50}), engine


def test_an_answer_and_its_measures() -> None:
    measures = Measures()
    with chat("Hello there") as (session, _):
        assert "".join(session.ask("hi", measures)) == "Hello there"
    assert (measures.finish_reason, measures.tokens) == ("stop", len("Hello there") + 1)
    assert measures.prompt_tokens == len("hi") + 4
    assert [turn["content"] for turn in session.turns] == ["hi", "Hello there"]


def test_the_longest_answer_is_asked_for() -> None:
    measures = Measures()
    with chat("Hello there") as (session, _):
        session.options["max_tokens"] = 5
        assert "".join(session.ask("hi", measures)) == "Hello"
    assert (measures.finish_reason, measures.tokens) == ("length", 5)


def test_thoughts_are_no_part_of_the_answer() -> None:
    with chat("<think>hm</think>Yes", "...</think>...") as (session, _):
        pieces = list(session.ask("hi", Measures()))
    assert "".join(piece for piece in pieces if isinstance(piece, Thought)) == "hm"
    assert session.turns[-1]["content"] == "Yes"


def test_who_leaves_stops_the_answer() -> None:
    with chat("x" * 40, latency=0.01) as (session, engine):
        answer = session.ask("hi", Measures())
        assert next(answer)
        answer.close()
        end = time.monotonic() + 5
        while engine.stats().running and time.monotonic() < end:
            time.sleep(0.005)
        assert engine.stats().running == 0
        assert engine.stats().completion_tokens < 40


def test_an_engine_that_fails_is_an_error() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no more")

    with chat("x", fail=fail) as (session, _), pytest.raises(KtError, match="the model failed"):
        list(session.ask("hi", Measures()))


def test_the_model_s_own_temperature_is_used_unless_another_is_asked_for() -> None:
    with chat("x", defaults=SamplingDefaults(temperature=0.3, top_k=20)) as (session, _):
        answers = session.client
        assert answers.names_temperature()
        own = answers._sampling({"messages": []})
        asked = answers._sampling({"messages": [], "temperature": 0.0, "max_tokens": 7})
    assert (own.temperature, own.top_k, own.max_tokens) == (0.3, 20, None)
    assert (asked.temperature, asked.top_k, asked.max_tokens) == (0.0, 20, 7)
