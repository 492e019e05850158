"""What a newcomer is told of a request that is wrong: whole sentences, at every endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import Field

from kt.server.faults import from_validation
from kt.server.schemas import StrictModel
from kt.server.translate import validated
from tests.fakes import FakeExecutor
from tests.server.harness import MODEL, Running, running

CHAT = "/v1/chat/completions"
SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
FUNCTION = {"type": "function", "name": "f"}
ROLES = "expected 'system', 'developer', 'user', 'assistant' or 'tool', got 'usr'"

# path, body, param, code, message
CASES = [
    (CHAT, {}, "messages", "missing_required_parameter", "Missing required parameter: 'messages'."),
    (
        CHAT,
        {**SAID, "temperature": "hot"},
        "temperature",
        "invalid_type",
        "Invalid type for 'temperature': expected a number, got a string.",
    ),
    (
        CHAT,
        {**SAID, "n": 1000},
        "n",
        "invalid_value",
        "Invalid value for 'n': expected at most 16, got 1000.",
    ),
    (
        CHAT,
        {**SAID, "temperature": 2.5},
        "temperature",
        "invalid_value",
        "Invalid value for 'temperature': expected at most 2, got 2.5.",
    ),
    (
        CHAT,
        {**SAID, "max_tokens": 1.5},
        "max_tokens",
        "invalid_type",
        "Invalid type for 'max_tokens': expected an integer, got a decimal number.",
    ),
    (
        CHAT,
        {"messages": []},
        "messages",
        "invalid_value",
        "Invalid value for 'messages': it must not be empty.",
    ),
    (
        CHAT,
        {"messages": [{"role": "usr", "content": "x"}]},
        "messages[0].role",
        "invalid_value",
        f"Invalid value for 'messages[0].role': {ROLES}.",
    ),
    (
        CHAT,
        {"messages": [{"role": "user"}]},
        "messages[0].content",
        "missing_required_parameter",
        "Missing required parameter: 'messages[0].content'.",
    ),
    (
        CHAT,
        {**SAID, "stop": ["a", 5]},
        "stop[1]",
        "invalid_type",
        "Invalid type for 'stop[1]': expected a string, got an integer.",
    ),
    (
        CHAT,
        {**SAID, "stop": ""},
        "stop",
        "invalid_value",
        "Invalid value for 'stop': expected 1 to 512 characters, got 0.",
    ),
    (
        CHAT,
        {**SAID, "logit_bias": {"5": 101}},
        "logit_bias.5",
        "invalid_value",
        "Invalid value for 'logit_bias.5': expected a number from -100 to 100, got 101.",
    ),
    (
        CHAT,
        {**SAID, "system": "x"},
        "system",
        "unknown_parameter",
        "Unknown parameter: 'system'. A message of the role 'system' says it.",
    ),
    (
        CHAT,
        {**SAID, "tools": [{"type": "function", "name": "f"}]},
        "tools[0].name",
        "unknown_parameter",
        "Unknown parameter: 'tools[0].name'. It belongs into 'function'.",
    ),
    (
        CHAT,
        {**SAID, "response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
        "response_format.json_schema.schema",
        "invalid_type",
        "Invalid type for 'response_format.json_schema.schema': expected an object, got a string.",
    ),
    (
        "/v1/completions",
        {"prompt": {}},
        "prompt",
        "invalid_type",
        "Invalid type for 'prompt': expected a string, an array of token ids, "
        "or an array of such prompts, got an object.",
    ),
    (
        "/v1/completions",
        {"prompt": [[1], ["x"]]},
        "prompt[1]",
        "invalid_value",
        "Invalid value for 'prompt[1]': expected token ids, which are numbers from 0 to 2^31 - 1.",
    ),
    (
        "/v1/completions",
        {"prompt": ["x", None]},
        "prompt[1]",
        "invalid_type",
        "Invalid type for 'prompt[1]': expected a string or an array of token ids, got null.",
    ),
    (
        "/v1/completions",
        {"prompt": "x", **SAID},
        "messages",
        "unknown_parameter",
        "Unknown parameter: 'messages'. /v1/chat/completions takes messages.",
    ),
    (
        "/v1/responses",
        {"input": 5},
        "input",
        "invalid_type",
        "Invalid type for 'input': expected a string or an array, got an integer.",
    ),
    (
        "/v1/responses",
        {
            "instructions": "x",
            "input": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"type": "function_call", "name": "f", "arguments": "{}"},
                {"role": "usr", "content": "c"},
            ],
        },
        "input[3].role",
        "invalid_value",
        f"Invalid value for 'input[3].role': {ROLES}.",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "function_call", "name": "f", "arguments": {}}]},
        "input[0].arguments",
        "invalid_type",
        "Invalid type for 'input[0].arguments': expected a string, got an object.",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "function_call", "name": ""}]},
        "input[0].name",
        "invalid_value",
        "Invalid value for 'input[0].name': expected 1 to 256 characters, got 0.",
    ),
    (
        "/v1/responses",
        {"input": "x", "tools": [FUNCTION, FUNCTION]},
        "tools[1].name",
        "invalid_value",
        "Invalid value for 'tools[1].name': another tool has the name 'f', too.",
    ),
    (
        "/v1/responses",
        {"input": "x", "tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
        "tool_choice.name",
        "invalid_value",
        "Invalid value for 'tool_choice.name': 'g' is not among the tools.",
    ),
    (
        "/v1/responses",
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}},
        "text.format.schema",
        "missing_required_parameter",
        "Missing required parameter: 'text.format.schema'.",
    ),
    (
        "/v1/responses",
        {"input": "x" * 300},
        "input",
        "context_length_exceeded",
        None,
    ),
    (
        "/v1/responses",
        {"input": "x", "max_tokens": 5},
        "max_tokens",
        "unknown_parameter",
        "Unknown parameter: 'max_tokens'. It is 'max_output_tokens' here.",
    ),
    (
        "/v1/embeddings",
        {},
        "input",
        "missing_required_parameter",
        "Missing required parameter: 'input'.",
    ),
    (
        "/tokenize",
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "invalid_type",
        "Invalid type for 'messages[0].content': "
        "expected a string or an array of parts, got an integer.",
    ),
    (
        "/detokenize",
        {"tokens": [1, -1]},
        "tokens[1]",
        "invalid_value",
        "Invalid value for 'tokens[1]': a token id is a number from 0 to 2^31 - 1.",
    ),
]

# What /v1/messages answers; its errors have no param.
ANTHROPIC = [
    ({"max_tokens": None}, "Missing required parameter: 'max_tokens'."),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "Invalid type for 'messages[0].content': expected a string or an array, got an integer.",
    ),
    (
        {"messages": [{"role": "user", "content": ["x"]}]},
        "Invalid type for 'messages[0].content[0]': expected an object, got a string.",
    ),
    ({"system": 5}, "Invalid type for 'system': expected a string or an array, got an integer."),
    (
        {"system": [{"type": "image"}]},
        "Unsupported parameter: 'system[0]'. Only text can be read, not 'image'.",
    ),
    (
        {"tools": [{"name": "f", "parameters": {}}]},
        "Unknown parameter: 'tools[0].parameters'. It is 'input_schema' here.",
    ),
    (
        {"tools": [{"name": "f", "input_schema": {}}] * 2},
        "Invalid value for 'tools[1].name': another tool has the name 'f', too.",
    ),
    (
        {"tool_choice": {"type": "any"}},
        "Invalid value for 'tool_choice': a forced call needs tools.",
    ),
    (
        {"tool_choice": "auto"},
        "Invalid type for 'tool_choice': expected an object, got a string.",
    ),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "Invalid value for 'tools[0].type': expected 'custom', got 'web_search_20250305'.",
    ),
    ({"stop": ["x"]}, "Unknown parameter: 'stop'. It is 'stop_sequences' here."),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FakeExecutor(context=256)) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "param", "code", "message"), CASES, ids=lambda value: str(value)[:40]
)
def test_a_mistake_is_told_in_a_sentence(server, path, body, param, code, message):
    response = server.http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == "invalid_request_error"
    assert message is None or error["message"] == message


@pytest.mark.parametrize(("fields", "message"), ANTHROPIC, ids=str)
def test_anthropic_s_form_has_the_same_sentences(server, fields, message):
    response = server.http.post("/v1/messages", json={**SAID, "max_tokens": 4, **fields})
    assert response.status_code == 400
    expected = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    assert response.json() == expected


def test_the_official_clients_raise_them(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="expected a number, got a string") as bad:
            client.chat.completions.create(model=MODEL, **SAID, temperature="hot")
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_type")
    with anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="expected at least 1, got -1"):
            client.messages.create(model=MODEL, **SAID, max_tokens=-1)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "'/v1/chat/completions'"),
        ("/v1/v1/messages", "'/v1/messages'"),
        ("/v1/embedding", "'/v1/embeddings'"),
    ],
)
def test_a_path_that_is_nearly_right(server, path, meant):
    error = server.http.post(path, json={}).json()["error"]
    assert f"did you mean {meant}" in error["message"]


class Inner(StrictModel):
    size: int = Field(ge=2)


class Outer(StrictModel):
    either: str | list[Inner] = ""
    others: list[Inner] = Field([], max_length=2)
    share: float = Field(0.5, gt=0, lt=1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"either": 5},
            "Invalid type for 'either': expected a string or an array, got an integer.",
        ),
        ({"either": [{}]}, "Missing required parameter: 'either[0].size'."),
        (
            {"either": [{"size": 2}, {"size": True}]},
            "Invalid type for 'either[1].size': expected an integer, got a boolean.",
        ),
        (
            {"either": [{"list[Inner]": 1}]},
            "Unknown parameter: 'either[0].list[Inner]'.",
        ),
        (
            {"others": [{"size": 2}, None]},
            "Invalid type for 'others[1]': expected an object, got null.",
        ),
        (
            {"others": [{"size": 2}] * 3},
            "Invalid value for 'others': expected at most 2 items, got 3.",
        ),
        ({"share": 0}, "Invalid value for 'share': expected more than 0, got 0."),
        ({"share": 1.0}, "Invalid value for 'share': expected less than 1, got 1.0."),
    ],
    ids=str,
)
def test_pydantic_s_complaints_become_sentences(body, message):
    with pytest.raises(ValueError) as refused:
        validated(Outer, body, {})
    assert refused.value.message == message


def test_a_kind_of_error_that_is_not_known_keeps_its_own_words():
    error = {"type": "brand_new", "loc": ("a", 0), "msg": "Input is odd", "input": 1}
    assert from_validation([error], {"a": [1]}).message == "Invalid value for 'a[0]': Input is odd."


def test_the_model_may_be_left_out(server):
    bodies = {
        CHAT: SAID,
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": SAID,
        "/v1/embeddings": {"input": "x"},
    }
    for path, body in bodies.items():
        limit = {"/v1/responses": "max_output_tokens", "/v1/embeddings": "user"}
        fields = {**body, limit.get(path, "max_tokens"): 1}
        response = server.http.post(path, json=fields)
        assert response.status_code == 200, response.text
        assert response.json()["model"] == MODEL
        response = server.http.post(path, json={**fields, "model": None})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", [MODEL, "fake", "/models/fake.gguf", "fake.gguf"])
def test_the_model_s_names(server, name):
    assert server.chat(model=name, max_tokens=1).json()["model"] == MODEL
    assert server.http.get(f"/v1/models/{name}").json()["id"] == MODEL


@pytest.mark.parametrize("name", ["models", "fake.ggu", "FAKE", "/models", "gpt-4"])
def test_what_is_not_its_name(server, name):
    assert server.chat(model=name).json()["error"]["code"] == "model_not_found"


def part(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


BAD = {"type": "strin"}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (part(a=part(b={"type": "array", "items": BAD})), ".properties.a.properties.b.items"),
        (part(good={"type": "string"}, bad=BAD), ".properties.bad"),
        ({**part(a={"$ref": "#/$defs/x"}), "$defs": {"x": part(c=BAD)}}, ".$defs.x.properties.c"),
        (part(**{"two words": BAD}), ".properties['two words']"),
        (part(a={"anyOf": [{"type": "string"}, BAD]}), ".properties.a.anyOf[1]"),
        (BAD, ""),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_place_in_a_schema_is_told(server, schema, place):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = server.chat(response_format=form).json()["error"]
    field = "response_format.json_schema.schema"
    assert (error["message"], error["param"]) == (f"{field}{place}: Invalid type: strin", field)


def test_a_schema_that_refers_to_itself_is_searched_once(server):
    tree = part(more={"$ref": "#/$defs/tree"}, bad={"not": {"type": "string"}})
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = server.chat(response_format=form).json()["error"]
    assert ".$defs.tree.properties.bad: Unimplemented keys" in error["message"]
