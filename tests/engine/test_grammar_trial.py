"""Grammars that are too much for llguidance: refused in time, by a process that may die of them."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from kt.engine import grammar, grammar_trial
from kt.engine.grammar_source import Words
from kt.engine.grammar_trial import Trial
from kt.engine.request import EngineClosed, Grammar, InvalidGrammar
from kt.placement import budget
from tests.engine.driving import make_engine

# Whether their intersection is empty takes llguidance time that grows exponentially.
SLOW = Grammar(
    "json_schema",
    json.dumps({"type": "string", "allOf": [{"pattern": f"a.*{i}"} for i in range(80)]}),
    "guided_json",
)
SCHEMA = Grammar(
    "json_schema",
    json.dumps(
        {"properties": {"a": {"pattern": "[a-z]+[0-9]*"}, "b": {"items": {"type": "number"}}}}
    ),
)
WORDS = Words([bytes([i]) for i in range(256)] + [b"<end>"], [256], [256])


def chain(length: int) -> Grammar:
    """A schema whose parts lie in each other, although its text does not nest."""
    parts = {f"p{i}": {"anyOf": [{"$ref": f"#/$defs/p{i + 1}"}]} for i in range(length)}
    parts[f"p{length}"] = {"type": "integer"}
    return Grammar("json_schema", json.dumps({"$defs": parts, "$ref": "#/$defs/p0"}))


def rules(length: int) -> Grammar:
    lines = [f"r{i}: r{i + 1}" for i in range(length)]
    return Grammar("lark", "\n".join(["start: r0", *lines, f'r{length}: "a"']))


REFUSED = {
    "one rule": (Grammar("lark", "start: start"), "no answer can match it"),
    "two rules": (Grammar("lark", "start: a\na: b\nb: a"), "no answer can match it"),
    "gbnf": (Grammar("gbnf", "root ::= root"), "no answer can match it"),
    "no character": (Grammar("regex", r"[^\s\S]"), "no answer can match it"),
    "no value": (Grammar("json_schema", '{"$ref": "#"}'), "no answer can match it"),
    "repetition": (Grammar("lark", 'start: "a"{1000000}'), "Too many items"),
    "choice": (
        Grammar("lark", "start: " + " | ".join(f'"w{i}"' for i in range(3000))),
        "3001 items",
    ),
    "schemas": (chain(20000), "nested too deeply"),
    "rules": (rules(9000), "nested too deeply"),
}
FINE = {
    "nothing": Grammar("lark", 'start: ""'),
    "perhaps nothing": Grammar("lark", 'start: a*\na: "x"?'),
    "recursion": Grammar("lark", 'start: start "a" | "b"'),
    "empty": Grammar("regex", "()"),
    "one character": Grammar("regex", "a"),
    "constant": Grammar("json_schema", '{"const": 1}'),
    "schemas": chain(60),
    "rules": rules(60),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_never_be_answered_is_refused(name: str) -> None:
    refused, why = REFUSED[name]
    with make_engine() as engine:
        with pytest.raises(InvalidGrammar, match=why):
            engine.prepare(refused)
        engine.prepare(Grammar("regex", "[ab]+"))


def test_what_can_be_answered_is_not() -> None:
    trial = Trial(WORDS)
    assert {name: trial.error(fine) for name, fine in FINE.items()} == dict.fromkeys(FINE, "")
    trial.close()


def test_a_slow_one_is_given_up_and_the_next_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "SECONDS", 0.3)
    with make_engine() as engine:
        begun = time.monotonic()
        with pytest.raises(InvalidGrammar, match=r"guided_json: .* longer than 0\.3 seconds"):
            engine.prepare(SLOW)
        assert time.monotonic() - begun < 5
        engine.prepare(Grammar("regex", "[ab]+"))
        monkeypatch.delattr(Trial, "_ask")  # the second time it is not tried
        again = Grammar(SLOW.kind, SLOW.text, "response_format.json_schema")
        with pytest.raises(InvalidGrammar, match=r"response_format.* longer than 0\.3 seconds"):
            engine.prepare(again)


def test_one_part_of_many_that_is_slow_is_not_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take its time again for every part."""
    monkeypatch.setattr(grammar_trial, "SECONDS", 0.3)
    whole = Grammar("json_schema", SLOW.text, parts=(Grammar("regex", "a"), SLOW))
    with make_engine() as engine, pytest.raises(InvalidGrammar, match=r"the JSON schema: .*longer"):
        engine.prepare(whole)


def test_an_engine_that_ends_waits_for_no_grammar() -> None:
    engine = make_engine().start()
    errors: list[BaseException] = []

    def prepare() -> None:
        try:
            engine.prepare(SLOW)
        except EngineClosed as error:
            errors.append(error)

    thread = threading.Thread(target=prepare)
    thread.start()
    time.sleep(0.3)
    begun = time.monotonic()
    engine.close()
    thread.join()
    assert time.monotonic() - begun < 5
    assert errors
    with pytest.raises(EngineClosed):
        engine.prepare(Grammar("regex", "[ab]+"))


@pytest.mark.parametrize("tokens", [300, 60_000])
def test_the_plan_counts_the_process(tokens: int) -> None:
    """What it has for itself once it has compiled something."""
    words = [b"%c%c" % (97 + i % 26, 97 + i // 26 % 26) + b"%x" % i for i in range(tokens - 256)]
    trial = Trial(Words([bytes([i]) for i in range(256)] + words, [], [0]))
    assert trial.error(SCHEMA) == ""
    assert trial._process is not None
    maps = Path(f"/proc/{trial._process.pid}/smaps_rollup").read_text()
    trial.close()
    private = 1024 * sum(map(int, re.findall(r"^Private_\w+: +(\d+)", maps, re.M)))
    planned = budget.GRAMMAR_BYTES + budget.GRAMMAR_TOKEN_BYTES * tokens
    assert 0.5 * planned < private < planned


def test_a_process_that_has_gone_is_started_again() -> None:
    trial = Trial(WORDS)
    assert trial._process is not None
    trial._process.kill()
    trial._process.wait()
    assert trial.error(Grammar("regex", "a")) == ""
    trial.close()


def test_who_kills_the_process_says_nothing_about_a_grammar() -> None:
    trial = Trial(WORDS)
    assert trial.error(SCHEMA) == ""  # it has started
    process = trial._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # so that it is killed in the middle of the next
    killer = threading.Timer(0.3, process.kill)
    killer.start()
    assert trial.error(chain(3)) == ""
    assert process.poll() == -signal.SIGKILL and not trial._too_much
    killer.join()
    trial.close()


def test_large_grammars_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "KEPT_CHARACTERS", 100)
    engine = make_engine()
    many = [Grammar("regex", letter * 40) for letter in "abcd"] + [Grammar("regex", "e" * 200)]
    for one in many:
        engine.prepare(one)
    assert [engine.knows(one) for one in many] == [False] * 4 + [True]
    engine.close()
