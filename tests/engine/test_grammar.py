"""Constrained answers have their form, whatever the logits want; others are untouched."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from kt.engine import grammar as grammars
from kt.engine.request import Delta, Grammar, InvalidGrammar, InvalidRequest, Request, Sampling
from tests.engine.driving import SMALL, answers, assert_all_free, expected_ids, ids, make_engine
from tests.fakes import ASSISTANT, END, FakeExecutor, replying

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
LARK = 'start: "x" pair+\npair: "(" /[0-9]/ ")"'
GBNF = 'root ::= "x" pair+\npair ::= "(" [0-9] ")"'


def constrained(kind: str, text: str = "", *, seed: int = 0, after: str | None = None) -> Request:
    sampling = Sampling(max_tokens=120, temperature=0.0 if seed % 2 else 1.0, seed=seed)
    grammar = Grammar(kind, text)  # type: ignore[arg-type]
    return Request([1 + seed, 2], sampling, grammar=grammar, grammar_after=after)


@pytest.mark.parametrize(
    "kind, text, pattern",
    [
        ("regex", r"[a-c]{2,5}-[0-9]+!", r"[a-c]{2,5}-[0-9]+!"),
        ("regex", r"(ä|日本)+\.", r"(ä|日本)+\."),
        ("lark", LARK, r"x(\(\d\))+"),
        ("gbnf", GBNF, r"x(\(\d\))+"),
    ],
)
def test_answers_match_the_grammar(kind: str, text: str, pattern: str) -> None:
    requests = [constrained(kind, text, seed=seed) for seed in range(12)]
    engine = make_engine()
    results = answers(engine, requests)
    ended = [result for result in results if result.finished.reason == "stop"]
    assert len(ended) >= 6  # the others were still in a repetition
    assert all(re.fullmatch(pattern, result.text) for result in ended), [r.text for r in ended]
    assert_all_free(engine)


def test_answers_fit_the_schema() -> None:
    requests = [constrained("json_schema", json.dumps(SCHEMA), seed=seed) for seed in range(8)]
    # A bias against white space: between tokens JSON allows any amount.
    biased = [
        Request(
            r.prompt_ids,
            Sampling(max_tokens=200, seed=0, logit_bias={32: -9, 10: -9, 9: -9, 13: -9}),
            grammar=r.grammar,
        )
        for r in requests
    ]
    for result in answers(make_engine(), biased):
        assert result.finished.reason == "stop"
        value = json.loads(result.text)
        assert set(value) == {"name", "age", "kind"}
        assert (
            len(value["name"]) <= 5 and 0 <= value["age"] <= 150 and value["kind"] in ("cat", "dog")
        )


def test_json_object_is_an_object_that_ends() -> None:
    text = '{"a": [1, {"b": null}]}'
    executor = FakeExecutor(**SMALL, reply=replying(text + " and then some"))
    sampling = Sampling(max_tokens=100, temperature=0)
    request = Request([ASSISTANT], sampling, grammar=Grammar("json_object"))
    [result] = answers(make_engine(executor), [request])
    assert (result.text, result.finished.reason) == (text, "stop")


def test_an_end_is_allowed_only_where_the_grammar_accepts() -> None:
    executor = FakeExecutor(**SMALL, reply=lambda history: END)
    engine = make_engine(executor)
    [short, long] = answers(
        engine,
        [constrained("regex", "[ab]{3}[cd]*", seed=1), constrained("regex", "[ab]*", seed=1)],
    )
    assert re.fullmatch("[ab]{3}", short.text) and short.finished.reason == "stop"
    assert long.text == "" and long.finished.completion_tokens == 1


def test_ignore_eos_and_min_tokens_do_not_break_a_grammar() -> None:
    executor = FakeExecutor(**SMALL, reply=lambda history: END)
    sampling = Sampling(max_tokens=50, temperature=0, ignore_eos=True, min_tokens=4)
    request = Request([1], sampling, grammar=Grammar("regex", "[ab]*"))
    fixed = Request([1], sampling, grammar=Grammar("regex", "ab"))
    [result, short] = answers(make_engine(executor), [request, fixed])
    assert re.fullmatch("[ab]{4}", result.text) and result.finished.reason == "stop"
    assert short.text == "ab" and short.finished.reason == "stop"


def test_only_what_follows_the_marker_is_constrained() -> None:
    executor = FakeExecutor(**SMALL, reply=replying("so</thin, I think</think>1234567"))
    sampling = Sampling(max_tokens=100, temperature=0)
    grammar = Grammar("regex", "[a-c0-3]{4}")
    [result] = answers(
        make_engine(executor),
        [Request([ASSISTANT], sampling, grammar=grammar, grammar_after="</think>")],
    )
    before, _, answer = result.text.partition("</think>")
    assert before == "so</thin, I think"
    assert re.fullmatch("123[a-c0-3]", answer)
    assert result.finished.reason == "stop"


def test_an_answer_cannot_end_before_its_marker() -> None:
    executor = FakeExecutor(**SMALL, reply=lambda history: END)
    request = constrained("regex", "[ab]", seed=1, after="</think>")
    [result] = answers(make_engine(executor), [request])
    assert result.finished.reason == "length" and result.finished.completion_tokens == 120


def test_constrained_neighbours_change_nothing() -> None:
    free = [
        Request(
            [9, seed], Sampling(max_tokens=30, temperature=seed % 2, seed=seed, ignore_eos=True)
        )
        for seed in range(4)
    ]
    bound = [constrained("regex", "[a-z]{20}", seed=seed) for seed in range(4)]
    mixed = [request for pair in zip(free, bound, strict=True) for request in pair]
    results = answers(make_engine(), mixed)
    assert [ids(result) for result in results[::2]] == [expected_ids(r) for r in free]
    alone = [answers(make_engine(), [request])[0] for request in bound]
    assert [r.text for r in results[1::2]] == [r.text for r in alone]


@pytest.mark.parametrize(
    "kind, text",
    [
        ("regex", "(["),
        ("regex", "(?=a)b"),
        ("json_schema", "{"),
        ("json_schema", "3"),
        ("json_schema", '{"type": "strin"}'),
        ("json_schema", '{"type": "object", "uniqueItems": true, "not": {}}'),
        ("lark", "start: missing"),
        ("lark", ""),
        ("gbnf", "root ::= missing"),
        ("gbnf", "root ::= ("),
    ],
)
def test_what_does_not_compile_is_refused_at_submit(kind: str, text: str) -> None:
    engine = make_engine()
    with pytest.raises(InvalidGrammar) as caught:
        engine.submit(constrained(kind, text))
    message = caught.value.message
    assert len(message) > 20 and "<state>" not in message and "\n" not in message
    with pytest.raises(InvalidGrammar):
        engine.prepare(Grammar(kind, text))  # type: ignore[arg-type]
    with engine:
        assert engine.stats().waiting == 0


def test_an_empty_marker_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="grammar_after"):
        make_engine().submit(constrained("regex", "a", after=""))


def test_a_slow_compilation_does_not_stop_running_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_grammar = grammars.GrammarCompiler._compile
    window: list[float] = []

    def slowly(self: grammars.GrammarCompiler, grammar: Grammar) -> object:
        assert threading.current_thread().name != "kt-engine"
        window.append(time.monotonic())
        time.sleep(0.3)
        window.append(time.monotonic())
        return compile_grammar(self, grammar)

    monkeypatch.setattr(grammars.GrammarCompiler, "_compile", slowly)
    with make_engine(FakeExecutor(**SMALL, latency=0.005)) as engine:
        stream = engine.submit(Request([5], Sampling(max_tokens=200, ignore_eos=True, seed=1)))
        arrivals: list[float] = []
        reader = threading.Thread(
            target=lambda: arrivals.extend(time.monotonic() for e in stream if isinstance(e, Delta))
        )
        reader.start()
        result = engine.submit(constrained("regex", "[ab]{3}")).result()
        stream.cancel()
        reader.join()
    assert re.fullmatch("[ab]{3}", result.text)
    assert sum(window[0] < at < window[1] for at in arrivals) > 10


def test_equal_grammars_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_grammar = grammars.GrammarCompiler._compile
    seen: list[Grammar] = []

    def counting(self: grammars.GrammarCompiler, grammar: Grammar) -> object:
        seen.append(grammar)
        return compile_grammar(self, grammar)

    monkeypatch.setattr(grammars.GrammarCompiler, "_compile", counting)
    results = answers(make_engine(), [constrained("regex", "[ab]{9}", seed=s) for s in range(5)])
    assert len(seen) == 1
    assert all(re.fullmatch("[ab]{9}", result.text) for result in results)


def test_a_grammar_that_the_bias_contradicts_ends_its_own_request_only() -> None:
    impossible = Request(
        [1],
        Sampling(max_tokens=9, temperature=0, logit_bias={ord("a"): float("-inf")}),
        grammar=Grammar("regex", "a+"),
    )
    fine = constrained("regex", "b{4}", seed=1)
    [bad, good] = answers(make_engine(), [impossible, fine])
    assert bad.finished.reason == "error" and "grammar" in bad.finished.message
    assert good.text == "bbbb"
