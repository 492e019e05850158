"""Every form of answer: what it means, and that it means the same wherever its stream is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt.server.harmony import HarmonyParser
from kt.server.output import MarkParser, Message, OutputParser
from kt.server.reasoning import REASONING_FORMS
from kt.server.tool_parsers import TOOL_FORMS, Call, CallStart, CallText, tool_form

TOOLS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "save": {"type": "object", "properties": {"text": {"type": "string"}, "tags": {}}},
}
THINK = REASONING_FORMS[0]
PARIS = ("weather", {"city": "Paris", "days": 2})
SEOUL = ("weather", {"city": "서울", "days": 1})

# form -> a text with two calls, as the model's own template writes them.
TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n'
    '</tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울", "days": 1}}\n'
    "</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
    "<function=weather>\n<parameter=city>\n서울\n</parameter>\n<parameter=days>\n1\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}; '
    '{"name": "weather", "parameters": {"city": "서울", "days": 1}}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
    '<｜tool▁sep｜>weather\n```json\n{"city": "서울", "days": 1}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Paris", "days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>'
    '{"city": "서울", "days": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>weather"
    "<arg_key>city</arg_key><arg_value>서울</arg_value><arg_key>days</arg_key>"
    "<arg_value>1</arg_value></tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|><|tool_call_begin|>'
    'functions.weather:1<|tool_call_argument_begin|>{"city": "서울", "days": 1}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris'
    '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n<invoke name="weather">\n'
    '<parameter name="city">서울</parameter>\n<parameter name="days">1</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Paris", "days": 2}<|call|><|start|>assistant to=functions.weather<|channel|>'
    'commentary json<|message|>{"city": "서울", "days": 1}<|call|>',
}


# Forms whose arguments are told one by one, not while they are written.
BY_PARAMETER = ("glm45", "minimax_m2", "qwen3_coder")


def parser(form: str, *, tools=TOOLS, thinking=False) -> OutputParser:
    if form == "harmony":
        return HarmonyParser(tools=tools is not None)
    return MarkParser(THINK, tool_form("", form), tools, thinking=thinking)


def message(make, pieces, complete=True) -> Message:
    parsing, result = make(), Message()
    for piece in pieces:
        result.add(parsing.push(piece))
    result.add(parsing.finish(complete))
    return result


def told(calls: list[Call]):
    return [(call.name, json.loads(call.arguments)) for call in calls]


def test_every_form_has_an_example():
    assert set(TWO_CALLS) == {form.name for form in TOOL_FORMS} | {"harmony"}


@pytest.mark.parametrize("form", TWO_CALLS)
def test_two_calls(form):
    whole = message(lambda: parser(form), [TWO_CALLS[form]])
    assert told(whole.calls) == [PARIS, SEOUL]
    assert (whole.content, whole.reasoning) == ("", "")


@pytest.mark.parametrize("form", [form for form in TWO_CALLS if form not in ("harmony", "llama3")])
def test_a_thought_some_words_and_calls(form):
    text = f"<think>\nHm, < or >?\n\n</think>\n\nLet me look. \n\n{TWO_CALLS[form]}\n"
    whole = message(lambda: parser(form), [text])
    assert whole.reasoning == "Hm, < or >?"
    assert whole.content == "Let me look."
    assert told(whole.calls) == [PARIS, SEOUL]


def test_harmony_channels():
    text = (
        "<|channel|>analysis<|message|>Think <|x|> first.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>"
        "final<|message|>It is 4 < 5.<|return|>"
    )
    whole = message(lambda: parser("harmony"), [text])
    assert whole.reasoning == "Think <|x|> first."
    assert whole.content == "Let me look.\nIt is 4 < 5."
    assert message(lambda: parser("harmony"), ["no form at all"]).content == "no form at all"


def test_a_thought_that_the_prompt_has_opened():
    whole = message(lambda: parser("hermes", thinking=True), ["Hm.\n</think>\n\nYes."])
    assert (whole.reasoning, whole.content) == ("Hm.", "Yes.")
    unfinished = message(lambda: parser("hermes", thinking=True), ["Hm, 1"])
    assert (unfinished.reasoning, unfinished.content) == ("Hm, 1", "")


def test_where_thoughts_are():
    """With their marks, so that their tokens can be counted."""
    for form, thinking, text, expected in [
        ("hermes", False, "\n<think>Hm</think> yes", "<think>Hm</think>"),
        ("hermes", True, "Hm</think> yes <think>", "Hm</think>"),
        ("hermes", False, "<think>Hm", "<think>Hm"),
        ("hermes", False, "no <think>Hm</think>", ""),
        ("harmony", False, "<|channel|>analysis<|message|>Hm<|end|><|channel|>final<|message|>A",
         "<|channel|>analysis<|message|>Hm<|end|>"),
        ("harmony", False, "<|channel|>final<|message|>A<|end|><|channel|>analysis<|message|>Hm",
         "<|channel|>analysis<|message|>Hm"),
    ]:  # fmt: skip
        for pieces in ([text], list(text)):
            parsing = parser(form, thinking=thinking)
            for piece in pieces:
                parsing.push(piece)
            parsing.finish()
            assert "".join(text[a:b] for a, b in parsing.thoughts) == expected


def test_marks_in_the_answer_are_text():
    for text in ("The tag <think> opens.", "a </think> b", "  <b>", " \n", "", "<thi"):
        whole = message(lambda: parser("hermes", tools=None), [text])
        assert (whole.content, whole.reasoning) == (text, "")


def test_without_tools_a_call_is_text():
    for form, text in TWO_CALLS.items():
        whole = message(lambda form=form: parser(form, tools=None), [text])
        assert whole.calls == []
        assert "Paris" in whole.content


def test_a_closing_mark_inside_an_argument():
    argument = "to end a call write </tool_call>, then\nstop"
    body = json.dumps({"name": "save", "arguments": {"text": argument}})
    whole = message(lambda: parser("hermes"), [f"<tool_call>{body}</tool_call>"])
    assert told(whole.calls) == [("save", {"text": argument})]


def test_values_have_the_types_of_the_schema():
    text = "<tool_call>save<arg_key>text</arg_key><arg_value>12</arg_value>"
    text += '<arg_key>tags</arg_key><arg_value>["a", 1]</arg_value></tool_call>'
    assert told(message(lambda: parser("glm45"), [text]).calls) == [
        ("save", {"text": "12", "tags": ["a", 1]})
    ]


def test_kimi_names_its_calls():
    calls = message(lambda: parser("kimi_k2"), [TWO_CALLS["kimi_k2"]]).calls
    assert [call.id for call in calls] == ["functions.weather:0", "functions.weather:1"]


MALFORMED = {
    "hermes": [
        "<tool_call>\n{not json}\n</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        "<tool_call><tool_call></tool_call>",
        "<tool_call>" + "[" * 5000 + "</tool_call>",
    ],
    "qwen3_coder": ["<tool_call>\n<function=>\n</tool_call>", "<tool_call>x</tool_call>"],
    "llama3": ['{"a": 1}', '{"name": "weather"}', "{", "[{", '{"name": "weather", "parameters": {'],
    "deepseek_v31": ["<｜tool▁call▁begin｜>weather{}<｜tool▁call▁end｜>"],
    "glm45": ['<tool_call>{"name": "weather"}</tool_call>', "<tool_call></tool_call>"],
    "kimi_k2": ["<|tool_call_begin|>weather{}<|tool_call_end|>"],
    "minimax_m2": ["<minimax:tool_call>\n<invoke>\n</minimax:tool_call>"],
    "harmony": [
        "<|channel|>commentary to=functions.weather<|message|>{oops",
    ],
}


@pytest.mark.parametrize(("form", "text"), [(f, t) for f, ts in MALFORMED.items() for t in ts])
def test_what_is_no_call_is_told_as_it_is(form, text):
    whole = message(lambda: parser(form), [text])
    assert whole.calls == []
    assert whole.content == ("{oops" if form == "harmony" else text)


@pytest.mark.parametrize("form", TWO_CALLS)
def test_a_call_that_the_limit_cut_off_is_told_as_far_as_it_came(form):
    text = TWO_CALLS[form]
    at = text.index("서울")
    whole = message(lambda: parser(form), [text[: at + 1]], complete=False)
    first, *cut = whole.calls
    assert first.whole and told([first]) == [PARIS]
    if form in BY_PARAMETER:  # none of its arguments is complete
        assert cut == []
        assert whole.content.endswith("서")
    else:
        assert cut == [Call("weather", '{"city": "서', whole=False)]
        assert whole.content == ""


@pytest.mark.parametrize("form", BY_PARAMETER)
def test_a_call_whose_second_argument_is_cut_off(form):
    text = TWO_CALLS[form]
    cut = text[: text.index("2", text.index("days")) + 1]
    whole = message(lambda: parser(form), [cut], complete=False)
    assert whole.calls == [Call("weather", '{"city": "Paris"', whole=False)]
    assert whole.content.endswith("2")


@pytest.mark.parametrize("form", TWO_CALLS)
def test_arguments_come_while_the_model_writes_them(form):
    text = TWO_CALLS[form]
    parsing = parser(form)
    before = [p for c in text[: text.index("Paris") + 2] for p in parsing.push(c)]
    rest = [
        p for c in text[text.index("Paris") + 2 : text.index("days") + 6] for p in parsing.push(c)
    ]
    joined = "".join(p.text for p in before if isinstance(p, CallText))
    assert [p.name for p in before if isinstance(p, CallStart)] == (
        [] if form in BY_PARAMETER else ["weather"]
    )
    assert joined == ("" if form in BY_PARAMETER else '{"city": "Pa')
    joined += "".join(p.text for p in rest if isinstance(p, CallText))
    assert joined.startswith('{"city": "Paris"')


@pytest.mark.parametrize(
    ("arguments", "whole", "content"),
    [
        ('{"city": "a\nb\tc"}', '{"city": "a\\nb\\tc"}', ""),  # as some models leave them
        (
            '{ "city" :\n["a", 1e3, true, null, {}] }',
            '{ "city" :\n["a", 1e3, true, null, {}] }',
            "",
        ),
        ('{"city": "\\ud83d\\ude00 \\u00e9"}', '{"city": "\\ud83d\\ude00 \\u00e9"}', ""),
        ("{}", "{}", ""),
        ('"{\\"city\\": 1}"', '{"city": 1}', ""),
    ],
)
def test_arguments_are_told_as_the_model_wrote_them(arguments, whole, content):
    text = f'<tool_call>{{"name": "save", "arguments": {arguments}}}</tool_call>'
    read = message(lambda: parser("hermes"), [text])
    assert (read.calls, read.content) == ([Call("save", whole)], content)
    json.loads(whole)


@pytest.mark.parametrize(
    ("body", "arguments", "whole", "content"),
    [
        # A bracket too few or too many behind the arguments, nothing else is missing.
        ('{"name": "save", "arguments": {"a": 1}', '{"a": 1}', True, ""),
        ('{"name": "save", "arguments": {"a": 1}}}', '{"a": 1}', True, ""),
        ('{"name": "save", "arguments": {"a": 1}} hm', '{"a": 1}', True, "hm</tool_call>"),
        # What cannot be arguments is text; what came before it was told.
        ('{"name": "save", "arguments": {"a": 1,}}', '{"a": 1,', False, "}}</tool_call>"),
        ('{"name": "save", "arguments": {"a": 01}}', '{"a": ', False, "01}}</tool_call>"),
        ('{"name": "save", "arguments": {"a": "\\q"}}', '{"a": "\\', False, 'q"}}</tool_call>'),
        ('{"name": "save", "arguments": {"a": "say "hi""}}', '{"a": "say "', False,
         'hi""}}</tool_call>'),
        ('{"name": "save", "arguments": {"a": "b', '{"a": "b</tool_call>', False, ""),
        ('{"name": "save", "arguments": {"a": [1', '{"a": [1', False, "</tool_call>"),
    ],
)  # fmt: skip
def test_a_call_that_leaves_its_form(body, arguments, whole, content):
    text = f"<tool_call>{body}</tool_call>"
    read = message(lambda: parser("hermes"), [text])
    assert (read.calls, read.content) == ([Call("save", arguments, whole=whole)], content)
    cut_everywhere(lambda: parser("hermes"), text)


def test_calls_in_a_list_and_arguments_before_the_name():
    text = '[{"arguments": {"a": 1}, "name": "save"}, {"name": "weather", "arguments": {"b": 2}}]'
    read = message(lambda: parser("hermes"), [f"<tool_call>{text}</tool_call>"])
    assert told(read.calls) == [("save", {"a": 1}), ("weather", {"b": 2})]


def cut_everywhere(make, text: str) -> None:
    expected = message(make, [text])
    assert message(make, list(text)) == expected
    for at in range(1, len(text)):
        assert message(make, [text[:at], text[at:]]) == expected, at


@pytest.mark.parametrize("form", TWO_CALLS)
def test_cut_at_every_place(form):
    whole = f"<think>\n\nHm </thin >\n</think>\n\nFirst. \n {TWO_CALLS[form]} \n done "
    for text in (TWO_CALLS[form], whole, *MALFORMED.get(form, ())):
        if len(text) < 2000:
            cut_everywhere(lambda: parser(form), text)
            cut_everywhere(lambda: parser(form, thinking=True), text)
            cut_everywhere(lambda: parser(form, tools=None), text)


FRAGMENTS = [
    "<think>", "</think>", "<thi", " ", "\n", "a", "{", "}", '"', "[", ";",
    *sorted({mark for form in TOOL_FORMS for mark in form.marks}),
    '{"name": "weather", "arguments": {"city": "x"}}', '"name": "', "<function=f>", "</function>",
    "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    '<invoke name="f">', "</invoke>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
    "analysis", "to=functions.f", "```json\n{}\n```", "functions.f:0", "weather",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(TWO_CALLS)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    st.data(),
)
def test_any_text_cut_anywhere_is_the_same_message(form, parts, data):
    text = "".join(parts)
    thinking, complete = data.draw(st.booleans()), data.draw(st.booleans())
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = message(lambda: parser(form, thinking=thinking), [text], complete)
    assert message(lambda: parser(form, thinking=thinking), pieces, complete) == expected
    assert message(lambda: parser(form, thinking=thinking), list(text), complete) == expected


KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=5).filter(
    lambda key: not set(key) & set("<>\"'")
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([form for form in TOOL_FORMS if form.arguments == "json"]),
    st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3),
    st.data(),
)
def test_calls_that_are_damaged_anywhere_and_cut_anywhere(form, arguments, data):
    """Undamaged, the arguments are told as they were written; damaged or not, every cut tells the
    same, and a whole call has an object.
    """
    text = form.written([("save", one) for one in arguments])
    read = message(lambda: parser(form.name), [text])
    if not any(mark in json.dumps(arguments, ensure_ascii=False) for mark in form.marks):
        assert [(c.arguments, c.whole) for c in read.calls] == [
            (json.dumps(one, ensure_ascii=False), True) for one in arguments
        ]
        assert read.content == ""
    at = data.draw(st.integers(0, len(text)))
    more = data.draw(st.sampled_from(["", '"', "}", "]", ",", "\\", "<", "x", "\n", "{", ":"]))
    text = text[:at] + more + text[at + data.draw(st.integers(0, 3)) :]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    complete = data.draw(st.booleans())
    read = message(lambda: parser(form.name), [text], complete)
    assert message(lambda: parser(form.name), pieces, complete) == read
    assert message(lambda: parser(form.name), list(text), complete) == read
    for call in read.calls:
        if call.whole:
            assert isinstance(json.loads(call.arguments), dict)
