"""Answers in a wanted form: what the engine is told to enforce, and what comes out."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from kt.engine import grammar_trial
from tests.fakes import FakeExecutor
from tests.server.harness import MODEL, Running, TextTokenizer, events, running
from tests.server.test_tools import QUESTION

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Seoul"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}


class Trip(BaseModel):
    direct: bool


@pytest.fixture(scope="module")
def server():
    """It says random bytes, so whatever makes sense comes from the grammar."""
    with running(FakeExecutor(context=4096, n_pages=2048)) as server:
        yield server


def answer(server: Running, **fields: Any) -> str:
    body = server.chat(seed=7, **fields).json()
    assert body["choices"][0]["finish_reason"] == "stop", body
    return body["choices"][0]["message"]["content"]


def check_trip(text: str) -> None:
    trip = json.loads(text)
    assert set(trip) == {"city", "days"}
    assert trip["city"] in ("Paris", "Seoul")
    assert trip["days"] in (1, 2)


def test_a_json_schema(server):
    check_trip(answer(server, response_format=FORMAT))
    check_trip(answer(server, guided_json=SCHEMA))
    check_trip(answer(server, guided_json=json.dumps(SCHEMA)))
    body = {"model": MODEL, "input": "x", "text": {"format": {**FORMAT["json_schema"]}}}
    body["text"]["format"]["type"] = "json_schema"
    response = server.http.post("/v1/responses", json=body).json()
    check_trip(response["output"][0]["content"][0]["text"])
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 99, "output_config": config}
    check_trip(server.http.post("/v1/messages", json=body).json()["content"][0]["text"])


def test_white_space_cannot_go_on_for_ever():
    """A model that likes nothing better than white space."""
    executor = FakeExecutor(reply=lambda _: ord(" "), context=4096, n_pages=2048)
    with running(executor) as eager:
        text = answer(eager, response_format=FORMAT, temperature=0)
    check_trip(text)
    assert " " in text
    assert "  " not in text


def test_any_json_object(server):
    body = server.chat(response_format={"type": "json_object"}, seed=3, max_tokens=200).json()
    choice = body["choices"][0]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_a_regular_expression_and_grammars(server):
    assert re.fullmatch(r"(yes|no), [0-9]{3}", answer(server, guided_regex="(yes|no), [0-9]{3}"))
    assert answer(server, guided_grammar='start: "a" ("b" | "c")') in ("ab", "ac")
    assert answer(server, guided_grammar='root ::= "x" ("y" | "z")') in ("xy", "xz")
    text = server.complete("x", guided_regex="[ab]{4}", max_tokens=9).json()["choices"][0]["text"]
    assert re.fullmatch("[ab]{4}", text)


def test_the_client_s_parse_helper(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        parsed = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Trip)
    assert isinstance(parsed.choices[0].message.parsed, Trip)


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


BAD = {"type": "object", "properties": {"a": {"type": "strin"}}, "required": ["a"]}
TOOLS = [tool("good", SCHEMA), tool("bad", BAD)]


@pytest.mark.parametrize(
    ("fields", "param", "place", "why"),
    [
        ({"guided_regex": "x("}, "guided_regex", "", "unclosed group: ("),
        (
            {"guided_regex": "(a)\\1"},
            "guided_regex",
            "",
            "backreferences are not supported: \\1",
        ),
        (
            {"guided_grammar": 'start: "a" b\nb: nothing'},
            "guided_grammar",
            "",
            'line 2, column 4: unknown name: "nothing"',
        ),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar", "", "Rule 'nothing' not found"),
        ({"guided_json": {"type": "strin"}}, "guided_json", "", "Invalid type: strin"),
        (
            {"response_format": schema_format(BAD)},
            "response_format.json_schema.schema",
            ".properties.a",
            "Invalid type: strin",
        ),
        (
            {"response_format": schema_format({"type": "string", "pattern": "a[b"})},
            "response_format.json_schema.schema",
            "",
            "pattern: unclosed character class: [",
        ),
        (
            {"response_format": schema_format({"oneOf": [{"type": "string"}, {"minLength": 3}]})},
            "response_format.json_schema.schema",
            "",
            "oneOf constraints are not supported",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required"},
            "tools[1].function.parameters",
            ".properties.a",
            "Invalid type: strin",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "bad"}}},
            "tools[1].function.parameters",
            ".properties.a",
            "Invalid type: strin",
        ),
        (
            {"tools": TOOLS[:1], "response_format": schema_format(BAD)},
            "response_format.json_schema.schema",
            ".properties.a",
            "Invalid type: strin",
        ),
    ],
)
def test_what_cannot_be_enforced_is_named(server, fields, param, place, why):
    """And nothing of the grammar that kt makes of it is shown."""
    response = server.chat(**fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["message"], error["param"]) == (f"{param}{place}: {why}", param)


def test_other_apis_have_other_names_for_it(server):
    function = {"type": "function", "name": "bad", "parameters": BAD}
    asked = {"model": MODEL, "input": "x"}
    form = {"format": {"type": "json_schema", "name": "x", "schema": BAD}}
    for body, param in (
        ({**asked, "text": form}, "text.format.schema"),
        ({**asked, "tools": [function], "tool_choice": "required"}, "tools[0].parameters"),
    ):
        error = server.http.post("/v1/responses", json=body).json()["error"]
        assert (
            error["message"] == f"{param}.properties.a: Invalid type: strin"
            and error["param"] == param
        )
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 9}
    form = {"format": {"type": "json_schema", "schema": BAD}}
    used = {"tools": [{"name": "bad", "input_schema": BAD}], "tool_choice": {"type": "any"}}
    for body, param in (
        ({**asked, "output_config": form}, "output_config.format.schema"),
        ({**asked, **used}, "tools[0].input_schema"),
    ):
        error = server.http.post("/v1/messages", json=body).json()["error"]
        assert error["message"] == f"{param}.properties.a: Invalid type: strin"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str
)
def test_a_forced_call(server, choice):
    flat = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Seoul"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": flat}}
    fields = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False}
    for stream in (False, True):
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
            fields = {**fields, "model": MODEL, "messages": QUESTION, "max_tokens": 300}
            if stream:
                with client.chat.completions.stream(**fields) as events:
                    choice_ = events.get_final_completion().choices[0]
            else:
                choice_ = client.chat.completions.create(**fields).choices[0]
        assert choice_.finish_reason == "tool_calls"
        (call,) = choice_.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Seoul")


def test_a_thought_is_free_and_the_answer_is_not():
    tokenizer = TextTokenizer("<think></think>")
    said = "<think>\nanything {at all}\n</think>"
    length = len(said.encode())

    def reply(history: list[int]) -> int:
        at = history[::-1].index(259)
        return said.encode()[at] if at < length else ord("?")

    with running(FakeExecutor(reply=reply, context=4096, n_pages=2048), tokenizer) as server:
        body = server.chat(response_format=FORMAT, seed=7).json()
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == "anything {at all}"
    check_trip(message["content"])


def test_slow_grammars_keep_nobody_waiting(monkeypatch):
    """As many as there are threads for texts, and more."""
    monkeypatch.setattr(grammar_trial, "SECONDS", 0.4)
    slow = [
        {"type": "string", "allOf": [{"pattern": f"{letter}.*{i}"} for i in range(80)]}
        for letter in "abcd"
    ]
    with running(FakeExecutor()) as server, ThreadPoolExecutor() as threads:
        answer(server, guided_regex="[ab]{3}")
        refused = [threads.submit(server.chat, guided_json=schema) for schema in slow]
        answer(server, guided_regex="[ab]{3}")  # compiled already
        assert server.chat(max_tokens=1).status_code == 200
        assert not all(future.done() for future in refused)
        for future in refused:
            assert future.result().status_code == 400
            error = future.result().json()["error"]
            assert error["param"] == "guided_json"
            assert "longer than" in error["message"]


# Its first letters are cheap. Behind them come sixteen numbers in any order, so that the product
# of their automata has 2^16 states: more than llguidance allows for a step.
LATER = 'start: "abcdefgh" DIGITS\nDIGITS: ' + " & ".join(f"/a.*{i}.*/" for i in range(16))


@pytest.mark.parametrize("end", [ord("x"), 256])
def test_a_grammar_that_becomes_too_complex_ends_its_own_answer(end):
    """Even where the model would like to end there."""
    slow = FakeExecutor(latency=0.005, reply=lambda _: end, context=4096, n_pages=2048)
    why = "guided_grammar: it failed in the middle of an answer: lexer error: too many expressions"
    with running(slow) as server, ThreadPoolExecutor() as threads:
        other = threads.submit(server.complete, "x", guided_regex="[ab]{100}", max_tokens=200)
        for ask in (server.chat, server.complete):
            told = ask(guided_grammar=LATER, temperature=0)
            error = told.json()["error"]
            assert (told.status_code, error["param"]) == (400, "guided_grammar"), told.text
            assert error["message"].startswith(why) and "\n" not in error["message"]
            streamed = events(ask(guided_grammar=LATER, temperature=0, stream=True).text)
            assert streamed[-1]["error"] == error
        said = "".join(chunk["choices"][0]["text"] for chunk in streamed[:-1])
        assert said == "abcdefgha"  # and nothing that the grammar did not allow
        assert len(other.result().json()["choices"][0]["text"]) == 100
        assert server.engine.stats().failures == 0
        server.wait_until_idle()


def test_a_grammar_that_nobody_waits_for_is_not_compiled(monkeypatch):
    slow = {"type": "string", "allOf": [{"pattern": f"a.*{i}"} for i in range(80)]}
    monkeypatch.setattr(grammar_trial, "SECONDS", 2)
    with running(FakeExecutor()) as server:
        answer(server, guided_regex="[ab]{3}")
        for letter in "xyz":
            with pytest.raises(httpx.ReadTimeout):
                body = {
                    "model": MODEL,
                    "messages": QUESTION,
                    "guided_json": {**slow, "title": letter},
                }
                server.http.post("/v1/chat/completions", json=body, timeout=0.2)
        begun = time.monotonic()
        answer(server, guided_regex="[bc]{3}")
        assert time.monotonic() - begun < 3.5
