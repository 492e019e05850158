"""Tools and thoughts through the official client, streaming and not, over scripted answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from kt.errors import UsageError
from kt.server.profile import profile_of
from kt.server.tool_parsers import TOOL_FORMS
from tests.fakes import FakeExecutor, replying
from tests.server.harness import MODEL, TextTokenizer, running
from tests.server.test_output_forms import BY_PARAMETER, TWO_CALLS, parser
from tests.server.test_output_forms import message as message_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of some days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "How is the weather?"}]
SIGNS = {form.name: form.signs[0] + form.also for form in TOOL_FORMS} | {"harmony": "<|channel|>"}


@contextmanager
def client(template: str, reply: str) -> Iterator[tuple[openai.OpenAI, TextTokenizer]]:
    tokenizer = TextTokenizer(template)
    executor = FakeExecutor(reply=replying(reply), context=4096, n_pages=2048)
    with running(executor, tokenizer) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as opened:
            yield opened, tokenizer


def ask(opened: openai.OpenAI, **fields: Any) -> Any:
    fields = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER], **fields}
    return opened.chat.completions.create(**fields)


def joined(stream: Any) -> tuple[dict[str, Any], str]:
    """What a client joins from the deltas, and the finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    reason = ""
    for chunk in stream:
        delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason or reason
        message["content"] += delta.content or ""
        message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or ():
            if call.index == len(message["calls"]):
                assert call.id and call.type == "function" and call.function.name
                message["calls"].append([call.function.name, ""])
            message["calls"][call.index][1] += call.function.arguments
    return message, reason


@pytest.mark.parametrize("form", TWO_CALLS)
def test_two_calls(form):
    with client(f"{{{{ tools }}}} {SIGNS[form]}", TWO_CALLS[form]) as (opened, _):
        choice = ask(opened).choices[0]
        message, reason = joined(ask(opened, stream=True))
        first = ask(opened, parallel_tool_calls=False).choices[0].message.tool_calls
    assert choice.finish_reason == reason == "tool_calls"
    assert choice.message.content is None
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert json.loads(calls[0].function.arguments) == {"city": "Paris", "days": 2}
    assert json.loads(calls[1].function.arguments) == {"city": "서울", "days": 1}
    assert len({call.id for call in calls}) == 2
    assert message["calls"] == [[c.function.name, c.function.arguments] for c in calls]
    assert message["content"] == ""
    assert len(first) == 1


@pytest.mark.parametrize("form", TWO_CALLS)
def test_a_call_s_arguments_are_streamed(form):
    with client(f"{{{{ tools }}}} {SIGNS[form]}", TWO_CALLS[form]) as (opened, _):
        deltas = [
            call
            for chunk in ask(opened, stream=True)
            for call in chunk.choices[0].delta.tool_calls or ()
        ]
    for number in (0, 1):
        head, *pieces = [call for call in deltas if call.index == number]
        assert (head.type, head.function.name, head.function.arguments) == (
            "function",
            "weather",
            "",
        )
        assert all(call.id is call.function.name is None for call in pieces)
        assert len(pieces) > (2 if form in BY_PARAMETER else 8)


def test_a_call_that_breaks_off():
    """The client gets what the model wrote, and is not told that there are calls to make."""
    start = '<tool_call>{"name": "weather", "arguments": {"city": "Par'
    for rest, fields, reason, content in [
        ('is" "days"}}</tool_call>', {}, "stop", '"days"}}</tool_call>'),
        ('is"}}</tool_call>', {"max_tokens": len(start)}, "length", None),
    ]:
        with client("<tool_call> tools", start + rest) as (opened, _):
            choice = ask(opened, **fields).choices[0]
            message, streamed_reason = joined(ask(opened, stream=True, **fields))
        assert choice.finish_reason == streamed_reason == reason
        (call,) = choice.message.tool_calls
        assert message["calls"] == [["weather", call.function.arguments]]
        assert '{"city": "Paris" '.startswith(call.function.arguments)
        assert choice.message.content == content
        assert message["content"] == (content or "")


def test_the_client_s_own_stream_helper_joins_the_calls():
    with client("<tool_call> tools", "Well.\n" + TWO_CALLS["hermes"]) as (opened, _):
        with opened.chat.completions.stream(
            model=MODEL, messages=QUESTION, tools=[WEATHER]
        ) as stream:
            message = stream.get_final_completion().choices[0].message
    assert message.content == "Well."
    assert json.loads(message.tool_calls[1].function.arguments) == {"city": "서울", "days": 1}


def test_a_thought_is_told_apart():
    reply = "<think>\nThey want\n the weather.\n</think>\n\nIt is fine."
    with client("<think></think>", reply) as (opened, _):
        whole = ask(opened, tools=[])
        message = whole.choices[0].message
        streamed, reason = joined(ask(opened, tools=[], stream=True))
        options = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
        *_, last = ask(opened, tools=[], **options)
    thought = len("<think>\nThey want\n the weather.\n</think>")  # a token a byte
    assert whole.usage.completion_tokens_details.reasoning_tokens == thought
    assert last.usage.completion_tokens_details.reasoning_tokens == 2 * thought
    assert message.reasoning_content == "They want\n the weather."
    assert message.content == "It is fine."
    assert streamed == {
        "content": message.content,
        "reasoning_content": message.reasoning_content,
        "calls": [],
    }
    assert reason == "stop"


class Opening(TextTokenizer):
    """Its template opens the thought itself."""

    def encode_chat(self, messages, **kwargs):
        return [*super().encode_chat(messages, **kwargs), *b"<think>\n"]


def test_a_thought_that_the_template_opens():
    tokenizer = Opening("<think></think>")
    # The reply starts after "<|assistant|><think>\n".
    executor = FakeExecutor(reply=replying("????????Hm.\n</think>\n\nYes."), context=4096)
    with running(executor, tokenizer) as server:
        message = server.chat().json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert message["content"] == "Yes."


def test_definitions_calls_and_results_reach_the_template():
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    history = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
    ]
    with client("<tool_call> tools tool_calls", "ok") as (opened, tokenizer):
        ask(opened, messages=history, reasoning_effort="low")
        ask(opened, tool_choice="none")
    seen, without = tokenizer.rendered
    assert seen["tools"] == [WEATHER]
    assert seen["reasoning_effort"] == "low"
    _, said, result = seen["messages"]
    assert said["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    assert said["reasoning_content"] == "hm"
    assert result == {"role": "tool", "content": "18 degrees", "tool_call_id": "call_1"}
    assert "tools" not in without


class WantsText(TextTokenizer):
    """Its template joins the arguments to other text, as DeepSeek-V3's."""

    def encode_chat(self, messages, **kwargs):
        from kt.text.chat_template import ChatTemplate

        source = "{% for m in messages %}{% for c in m.tool_calls %}" + (
            "{{ 'args ' + c['function']['arguments'] }}{% endfor %}{% endfor %}"
        )
        rendered = ChatTemplate({"default": source}, {}).render(
            messages, tools=None, add_generation_prompt=True, extra={}
        )
        return super().encode_chat([{"role": "user", "content": rendered}])


def test_a_template_that_wants_arguments_as_text_gets_them():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    tokenizer = WantsText("tools tool_calls")
    with running(FakeExecutor(reply=replying("ok")), tokenizer) as server:
        turns = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, *QUESTION]
        assert server.chat(messages=turns).status_code == 200
    assert tokenizer.rendered[0]["messages"][0]["content"] == 'args {"a": 1}'


def test_a_template_without_tools_gets_them_as_text():
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        {"role": "system", "content": "Be brief."},
        *QUESTION,
        {"role": "assistant", "content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "fine"},
    ]
    with client("", TWO_CALLS["hermes"]) as (opened, tokenizer):
        message = ask(opened, messages=turns).choices[0].message
    assert len(message.tool_calls) == 2
    system, _, said, result = tokenizer.rendered[0]["messages"]
    assert system["content"].startswith("Be brief.\n\nYou may call functions")
    assert json.dumps(WEATHER) in system["content"]
    shown = json.dumps({"name": "weather", "arguments": {}})
    assert said["content"] == f"Hm.\n<tool_call>\n{shown}\n</tool_call>"
    assert '{"name": "NAME", "arguments": {"KEY": "VALUE"}}' in system["content"]
    assert result == {"role": "user", "content": "<tool_response>\nfine\n</tool_response>"}


@pytest.mark.parametrize("form", TOOL_FORMS, ids=lambda form: form.name)
def test_tools_are_explained_in_the_form_that_the_model_knows(form):
    """DeepSeek's own templates render calls, but no definitions."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [*QUESTION, {"role": "assistant", "tool_calls": [call]}]
    turns.append({"role": "tool", "tool_call_id": "1", "content": "fine"})
    template = form.signs[0] + form.also + " message.tool_calls"
    with client(template, "ok") as (opened, tokenizer):
        ask(opened, messages=turns)
    system, _, said, result = tokenizer.rendered[0]["messages"]
    example = system["content"].split("in this form:\n")[1]
    (read,) = message_of(lambda: parser(form.name), [example]).calls
    assert (read.name, json.loads(read.arguments)) == ("NAME", {"KEY": "VALUE"})
    assert said["tool_calls"][0]["function"]["name"] == "weather"
    assert result["role"] == "tool"
    assert "tools" not in tokenizer.rendered[0]


def test_health_shows_the_forms(serve):
    server = serve(FakeExecutor(), TextTokenizer("<tool_call></think>tools"))
    assert server.http.get("/health").json()["answers"] == {
        "tools": {"value": "hermes", "reason": "the chat template teaches it"},
        "reasoning": "think",
    }


def test_forms_that_are_asked_for_win():
    wanted = {"tool_form": "glm45", "reasoning_form": "none"}
    profile = profile_of("<tool_call></think>tools", wanted)
    assert (profile.tools.name, profile.reasoning, profile.reason) == ("glm45", None, "asked for")
    assert profile_of("", {"tool_form": "harmony"}).harmony
    for key in ("tool_form", "reasoning_form"):
        with pytest.raises(UsageError, match="there is no"):
            profile_of("", {key: "other"})
