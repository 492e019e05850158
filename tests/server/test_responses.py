"""/v1/responses through the official client, streaming and not."""

from __future__ import annotations

import json

import openai
import pytest

from tests.fakes import FakeExecutor, replying
from tests.server.harness import MODEL, TextTokenizer, running
from tests.server.test_output_forms import TWO_CALLS

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ANSWER = "<think>\nHm.\n</think>\n\nGrüße\n" + TWO_CALLS["hermes"]


@pytest.fixture(scope="module")
def tokenizer():
    return TextTokenizer("<tool_call></think> tools tool_calls")


@pytest.fixture(scope="module")
def client(tokenizer):
    executor = FakeExecutor(reply=replying(ANSWER), context=4096, n_pages=2048)
    with running(executor, tokenizer) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as opened:
            yield opened


def check(response):
    thought, message, *calls = response.output
    assert thought.content[0].text == "Hm."
    assert response.output_text == message.content[0].text == "Grüße"
    assert [call.name for call in calls] == ["weather", "weather"]
    assert json.loads(calls[0].arguments) == {"city": "Paris", "days": 2}
    assert all(call.call_id.startswith("call_") for call in calls)
    assert {item.status for item in response.output} == {"completed"}
    assert response.status == "completed"
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens == len(ANSWER.encode()) + 1
    assert usage.input_tokens_details.cached_tokens >= 0
    assert usage.output_tokens_details.reasoning_tokens == len("<think>\nHm.\n</think>")


def test_a_response(client, tokenizer):
    response = client.responses.create(
        model=MODEL, input="How is it?", instructions="Be brief.", tools=[TOOL]
    )
    check(response)
    assert response.model_extra["store"] is False
    assert tokenizer.rendered[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it?"},
    ]
    assert tokenizer.rendered[-1]["tools"][0]["function"]["name"] == "weather"


def test_a_stream(client):
    events = list(client.responses.create(model=MODEL, input="Hi", tools=[TOOL], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[0].response.status == "in_progress"
    assert events[-1].type == "response.completed"
    check(events[-1].response)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == "Grüße"
    thought = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(thought) == "Hm."
    kinds = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    pieces = [e for e in events if e.type == "response.function_call_arguments.delta"]
    whole = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(pieces) > 20
    for event in whole:
        assert "".join(p.delta for p in pieces if p.item_id == event.item_id) == event.arguments
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in events[-1].response.output]


def test_the_client_s_own_stream_helper(client):
    with client.responses.stream(model=MODEL, input="Hi", tools=[TOOL]) as stream:
        check(stream.get_final_response())


def test_the_token_limit(client):
    response = client.responses.create(model=MODEL, input="Hi", max_output_tokens=12)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].content[0].text == "Hm."[: 12 - len("<think>\n")]


def test_a_call_that_the_limit_cuts_off(client):
    limit = len(ANSWER.encode()) - len('서울", "days": 1}}\n</tool_call>'.encode())
    fields = {"model": MODEL, "input": "Hi", "tools": [TOOL], "max_output_tokens": limit}
    *_, last = client.responses.create(**fields, stream=True)
    for response in (client.responses.create(**fields), last.response):
        assert response.output[-1].status == response.status == "incomplete"
        assert response.output[-1].arguments == '{"city": "'


def test_the_items_of_a_conversation_reach_the_template(client, tokenizer):
    first = client.responses.create(model=MODEL, input="Hi", tools=[TOOL])
    said = [item.model_dump(exclude_none=True) for item in first.output]
    result = {"type": "function_call_output", "call_id": said[2]["call_id"], "output": "fine"}
    client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            *said,
            result,
            {"role": "user", "content": "And now?"},
        ],
        tools=[TOOL],
        tool_choice="auto",
    )
    user, assistant, tool, last = tokenizer.rendered[-1]["messages"]
    assert user == {"role": "user", "content": "Hi"}
    assert assistant["content"] == "Grüße"
    assert assistant["reasoning_content"] == "Hm."
    assert [c["function"]["name"] for c in assistant["tool_calls"]] == ["weather", "weather"]
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"city": "Paris", "days": 2}
    assert tool == {"role": "tool", "tool_call_id": said[2]["call_id"], "content": "fine"}
    assert last["content"] == "And now?"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"input": []}, "input", "invalid_value"),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input[0].type",
            "unsupported_parameter",
        ),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"colour": 1}, "colour", "unknown_parameter"),
        ({"model": "gpt-4"}, "model", "model_not_found"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused(client, fields, param, code):
    body = {"model": MODEL, "input": "Hi", **fields}
    with pytest.raises(openai.APIStatusError) as refused:
        client.post("/responses", body=body, cast_to=object)
    assert refused.value.status_code in (400, 404)
    assert (refused.value.param, refused.value.code) == (param, code)


def test_an_error_in_a_stream_is_told(serve):
    def fail(batch):
        if len(batch.tokens) == 1:
            raise RuntimeError("broken")

    server = serve(FakeExecutor(fail=fail))
    body = {"model": MODEL, "input": "Hi", "stream": True}
    text = server.http.post("/v1/responses", json=body).text
    last = json.loads(text.strip().split("data: ")[-1])
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["message"]
