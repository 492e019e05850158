"""Grammars of forced tool calls: they admit what each form's parser reads, and nothing else."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from kt.server.grammars import Signature, calls
from kt.server.tool_parsers import TOOL_FORMS
from tests.server.test_output_forms import TOOLS, message, parser, told

BYTES = LLTokenizer("byte")
SIGNATURES = [Signature(name, schema) for name, schema in TOOLS.items()]
ARGUMENTS = {"city": "Paris", "days": 2}


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("form", TOOL_FORMS, ids=lambda form: form.name)
def test_calls_are_admitted_and_read(form):
    grammar = calls(form, SIGNATURES, {}, parallel=True)
    text = form.written([("weather", ARGUMENTS), ("save", {"text": 'a "b" \\ <c>\n\nd'})])
    assert accepts(grammar, text)
    assert accepts(grammar, form.written([("weather", ARGUMENTS)]))
    assert told(message(lambda: parser(form.name), [text]).calls) == [
        ("weather", ARGUMENTS),
        ("save", {"text": 'a "b" \\ <c>\n\nd'}),
    ]
    assert not accepts(grammar, "Certainly!")
    assert not accepts(grammar, "")
    assert not accepts(grammar, form.written([("other", {})]))
    assert not accepts(grammar, form.written([("weather", {"city": "Paris", "days": "two"})]))


@pytest.mark.parametrize("form", TOOL_FORMS, ids=lambda form: form.name)
def test_one_call_where_only_one_is_wanted(form):
    grammar = calls(form, SIGNATURES, {}, parallel=False)
    assert accepts(grammar, form.written([("weather", ARGUMENTS)]))
    assert not accepts(grammar, form.written([("weather", ARGUMENTS)] * 2))


def test_an_answer_in_its_schema_or_a_call():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = TOOL_FORMS[-1]
    grammar = calls(form, SIGNATURES, {}, parallel=True, answer=schema)
    assert accepts(grammar, '{"a": 1}')
    assert accepts(grammar, form.written([("weather", ARGUMENTS)]))
    assert not accepts(grammar, '{"a": "b"}')


def test_special_tokens_are_written_by_id():
    form = next(form for form in TOOL_FORMS if form.name == "kimi_k2")
    special = {"<|tool_call_begin|>": 300, "<|tool_calls_section_begin|>": 301}
    grammar = calls(form, SIGNATURES, special, parallel=True)
    assert "<[301]> call" in grammar
    assert '<[300]> "functions.weather:" /[0-9]+/' in grammar
    assert "tool_call_begin" not in grammar


def test_enumerations_and_shared_definitions():
    schema = {
        "type": "object",
        "$defs": {"day": {"type": "integer", "minimum": 1}},
        "properties": {
            "unit": {"type": "string", "enum": ["C", "F"]},
            "day": {"$ref": "#/$defs/day"},
        },
        "required": ["unit", "day"],
    }
    form = next(form for form in TOOL_FORMS if form.name == "qwen3_coder")
    grammar = calls(form, [Signature("f", schema)], {}, parallel=False)
    assert accepts(grammar, form.written([("f", {"unit": "C", "day": 3})]))
    assert not accepts(grammar, form.written([("f", {"unit": "K", "day": 3})]))
    assert not accepts(grammar, form.written([("f", {"unit": "C", "day": 0})]))
    assert not accepts(grammar, form.written([("f", {"unit": "C"})]))


def test_arguments_are_an_object_where_the_schema_also_allows_null():
    form = next(form for form in TOOL_FORMS if form.name == "hermes")
    grammar = calls(form, [Signature("f", {"type": ["object", "null"]})], {}, parallel=False)
    written = form.written([("f", {})])
    assert accepts(grammar, written)
    assert not accepts(grammar, written.replace("{}", "null"))


def test_harmony():
    grammar = calls(None, SIGNATURES, {}, parallel=True)
    call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    text = call + json.dumps(ARGUMENTS)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert accepts(grammar, text)
    assert accepts(grammar, thought + text)
    assert not accepts(grammar, thought + "<|channel|>final<|message|>No.")
