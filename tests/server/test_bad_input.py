"""Bad requests: a status, OpenAI's error object with the name of what is wrong, nothing left."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kt.errors import KtError
from tests.fakes import FakeExecutor
from tests.server.harness import MODEL, Running, TextTokenizer, running

JSON = {"content-type": "application/json"}


class Template(TextTokenizer):
    """Refuses as a template with raise_exception does."""

    def encode_chat(self, messages, **kwargs):
        if messages[0]["content"] == "refuse me":
            raise KtError("the conversation must alternate")
        return super().encode_chat(messages, **kwargs)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FakeExecutor(context=256), Template()) as server:
        yield server
        server.wait_until_idle()
        assert server.http.get("/health").json()["stats"]["failures"] == 0


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["type"] == "invalid_request_error"
    assert response.headers["x-request-id"]
    return body["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": ', "not valid JSON: Expecting value at line 1"),
        (b'{"model": "a",}', "not valid JSON"),
        (b"", "empty"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"temperature": NaN}', "NaN is not a JSON number"),
        (b'{"temperature": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"model": "\xff"}', "not valid UTF-8 at byte 11"),
        (b'{"model": "\\ud83d"}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_bodies_that_are_no_request(server, body, words):
    for path in ("/v1/chat/completions", "/v1/completions"):
        response = server.http.post(path, content=body, headers=JSON)
        assert words in error_of(response)["message"]


@pytest.mark.parametrize("levels", [100, 500, 700, 900])
def test_nesting_that_the_parser_takes_and_the_rest_does_not(server, levels):
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": deep}}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]}]
    cases = {
        "/v1/chat/completions": {"messages": turns[:1], "chat_template_kwargs": {"a": deep}},
        "/v1/completions": {"prompt": deep},
        "/v1/messages": {"messages": [*turns, turns[0]], "max_tokens": 1},
    }
    for path, body in cases.items():
        response = server.http.post(path, json={"model": MODEL, **body})
        assert response.status_code == 400, (path, response.text)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_only_json_is_read(server, kind):
    """A web page may send other types to any address without asking."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]}).encode()
    headers = {"content-type": kind} if kind else {}
    response = server.http.post("/v1/chat/completions", content=body, headers=headers)
    assert "Content-Type: application/json" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", "1.0"),
        ("temperature", True),
        ("temperature", [1]),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 1e-308),
        ("logit_bias", {"\u0663": 1}),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", 1 << 40),
        ("max_tokens", "5"),
        ("max_tokens", 5.5),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("seed", 1 << 70),
        ("seed", "x"),
        ("n", 0),
        ("n", 1000),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", True),
        ("stop", 5),
        ("stop", {}),
        ("stop", ["a"] * 17),
        ("stop", "a" * 513),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", [1]),
        ("logit_bias", {str(i): 0 for i in range(1025)}),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("ignore_eos", "no"),
        ("model", 5),
        ("model", ""),
        ("messages", "hello"),
        ("messages", []),
        ("messages", {}),
        ("messages", [{"role": "user", "content": "x"}] * 4097),
        ("chat_template_kwargs", 5),
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"add_generation_prompt": False}),
        ("chat_template_kwargs", {"self": 1}),
        ("chat_template_kwargs", {"a b": 1}),
        ("chat_template_kwargs", {"a": "x" * 20_000}),
        ("chat_template_kwargs", {"a": [[[[[[[[[1]]]]]]]]]}),
        ("tools", {}),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 513),
        ("tool_choice", "maybe"),
        ("parallel_tool_calls", "no"),
        ("response_format", "json"),
        ("reasoning_effort", "most"),
        ("guided_regex", ""),
        ("guided_json", 5),
        ("guided_json", []),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_value_outside_its_range_names_its_field(server, field, value):
    assert error_of(server.chat(**{field: value}))["param"] == field


def test_a_number_too_large_for_a_float(server):
    body = (
        b'{"model": "fake", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'
    )
    response = server.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert error_of(response)["param"] == "temperature"


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"content": "x"}, "messages[0].role", "Missing"),
        ({"role": "usr", "content": "x"}, "messages[0].role", "'user'"),
        ({"role": "user"}, "messages[0].content", "Missing"),
        ({"role": "user", "content": None}, "messages[0].content", "Missing"),
        ({"role": "user", "content": 5}, "messages[0].content", "string"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]", "object, got an integer"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "Missing"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0]",
            "Only text can be read, not 'image_url'",
        ),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour", "Unknown"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
            "messages[0].tool_calls[0].function",
            "Missing",
        ),
        ("hello", "messages[0]", "object"),
    ],
)
def test_a_bad_message_is_named(server, message, param, words):
    error = error_of(server.chat(messages=[message]))
    assert error["param"] == param
    assert words in error["message"]


def test_an_unknown_field_is_named_with_what_was_meant(server):
    error = error_of(server.chat(temprature=1))
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    assert "Did you mean 'temperature'?" in error["message"]
    assert "Did you mean" not in error_of(server.chat(zzz=1))["message"]
    error = error_of(server.chat(**{"x" * 1000: 1}))
    assert len(error["message"]) < 200
    assert error_of(server.chat(**{"{model}": 1}))["param"] == "{model}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("modalities", ["audio"]),
        ("store", True),
        ("web_search_options", {}),
    ],
)
def test_what_openai_has_and_kt_has_not_is_refused_by_name(server, field, value):
    error = error_of(server.chat(**{field: value}))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "ann", "metadata": {"a": "b"}, "service_tier": "auto", "store": False},
        {"parallel_tool_calls": True, "tools": [], "tool_choice": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
    ],
)
def test_fields_that_ask_for_nothing_are_harmless(server, fields):
    assert server.chat(max_tokens=1, **fields).status_code == 200


def function(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function", "Missing"),
        ({"tools": [function("a b")]}, "tools[0].function.name", "matches"),
        ({"tools": [function(parameters=5)]}, "tools[0].function.parameters", "an object"),
        (
            {"tools": [function(parameters={"type": "string"})]},
            "tools[0].function.parameters",
            "the schema of an object, not of string",
        ),
        ({"tools": [function(), function()]}, "tools[1].function.name", "another tool"),
        ({"tools": [{**function(), "type": "web"}]}, "tools[0].type", "'function'"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        (
            {"tools": [function()], "tool_choice": function("g")},
            "tool_choice.function.name",
            "'g' is not among the tools",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "Missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'text'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing"),
        ({"guided_json": "{"}, "guided_json", "not a JSON schema"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "give one of"),
        ({"guided_regex": "a", "tools": [function()]}, "guided_regex", "does not go with tools"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_tools_and_formats_that_make_no_sense(server, fields, param, words):
    error = error_of(server.chat(**fields))
    assert error["param"] == param
    assert words in error["message"]


def test_fields_that_contradict_each_other(server):
    assert "logprobs" in error_of(server.chat(top_logprobs=2))["message"]
    assert "stream" in error_of(server.chat(stream_options={"include_usage": True}))["message"]
    assert "differ" in error_of(server.chat(max_tokens=2, max_completion_tokens=3))["message"]
    assert server.chat(max_tokens=2, max_completion_tokens=2).status_code == 200


@pytest.mark.parametrize("name", [MODEL, "fake", "/models/fake.gguf"])
def test_the_model_answers_to_its_names(server, name):
    response = server.chat(model=name, max_tokens=1)
    assert response.json()["model"] == MODEL


def test_another_model_is_not_found(server):
    for response in (server.chat(model="gpt-4"), server.complete(model="gpt-4")):
        error = error_of(response, 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert MODEL in error["message"]


def test_a_prompt_that_is_too_long_gets_both_numbers(server):
    # 300 bytes, and <bos> <user> <end> <assistant>.
    error = error_of(server.chat("x" * 300))
    assert error["code"] == "context_length_exceeded"
    assert "304" in error["message"]
    assert "256" in error["message"]
    assert error_of(server.chat("x" * 300, stream=True))["code"] == "context_length_exceeded"


def test_a_template_s_refusal_is_told_in_its_words(server):
    for stream in (False, True):
        error = error_of(server.chat("refuse me", stream=stream))
        assert error["message"] == "the conversation must alternate"
        assert error["param"] == "messages"


def test_a_logit_bias_outside_the_vocabulary(server):
    error = error_of(server.chat(logit_bias={"9999": 1}))
    assert "9999" in error["message"]
    assert error["param"] == "logit_bias"


def test_what_the_engine_refuses_names_its_field(server):
    assert error_of(server.chat("x" * 300))["param"] == "messages"
    assert error_of(server.complete("x" * 300))["param"] == "prompt"
    assert error_of(server.complete([1 << 30]))["param"] == "prompt"
    for ids, param in (([-1], "prompt"), ([1 << 31], "prompt"), ([[0, -1]], "prompt[0]")):
        assert error_of(server.complete(ids))["param"] == param
    assert "from 0 to 2^31 - 1" in error_of(server.complete([-1]))["message"]


@pytest.mark.parametrize("path", ["/v1", "/v1/chat", "/docs", "/v1/models/gpt-4"])
def test_paths_that_do_not_exist(server, path):
    error_of(server.http.get(path), 404)


def test_methods_that_do_not_exist(server):
    response = server.http.get("/v1/chat/completions")
    assert "GET" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"
    error_of(server.http.post("/health"), 405)


def test_ten_megabytes_are_refused_whether_announced_or_not(server):
    body = b" " * 10_000_000
    announced = server.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert "8.0 MiB" in error_of(announced, 413)["message"]

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    chunked = server.http.post("/v1/chat/completions", content=pieces(), headers=JSON)
    assert error_of(chunked, 413)["code"] == "request_too_large"
    assert server.chat(max_tokens=1).status_code == 200


def test_a_client_that_sends_all_before_it_reads_gets_its_answer(server):
    """If the server closed early, the rest of the body would be answered by a reset connection."""
    name, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 30000000\r\n\r\n"
    with socket.create_connection((name, int(port)), timeout=20) as connection:
        connection.sendall(head + b" " * 30_000_000)
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_large_body_within_the_limit_is_read(server):
    # Above the size that is parsed on the event loop.
    error = error_of(server.chat("x" * 200_000))
    assert error["code"] == "context_length_exceeded"
    body = b'{"a": "' + b"x" * 200_000
    response = server.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert "not valid JSON" in error_of(response)["message"]


def test_an_error_inside_tells_no_more_than_that(serve, caplog):
    class Broken(TextTokenizer):
        def encode_chat(self, messages, **kwargs):
            raise ZeroDivisionError(f"cannot read {messages}")

    broken = serve(FakeExecutor(), Broken())
    response = broken.chat("a secret question")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text
    assert "encode_chat" in caplog.text
    assert "secret" not in caplog.text
    assert broken.http.get("/health").status_code == 200
