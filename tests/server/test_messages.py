"""/v1/messages through the official client, streaming and not."""

from __future__ import annotations

import re

import anthropic
import pytest

from tests.fakes import FakeExecutor, replying
from tests.server.harness import MODEL, TextTokenizer, running
from tests.server.test_output_forms import TWO_CALLS

TOOL = {"name": "weather", "description": "Of days", "input_schema": {"type": "object"}}
ANSWER = "<think>\nHm.\n</think>\n\nGrüße\n" + TWO_CALLS["hermes"]
SCHEMA_FIELD = "output_config.format.schema"
QUESTION = [{"role": "user", "content": "How is it?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return TextTokenizer("<tool_call></think> tools tool_calls")


@pytest.fixture(scope="module")
def client(tokenizer):
    executor = FakeExecutor(reply=replying(ANSWER), context=4096, n_pages=2048)
    with running(executor, tokenizer, api_keys=["key"]) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0) as opened:
            yield opened


def check(message):
    thought, text, *calls = message.content
    assert (thought.type, thought.thinking) == ("thinking", "Hm.")
    assert text.text == "Grüße"
    assert [call.name for call in calls] == ["weather", "weather"]
    assert [call.input for call in calls] == [
        {"city": "Paris", "days": 2},
        {"city": "서울", "days": 1},
    ]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(ANSWER.encode()) + 1
    assert message.usage.output_tokens_details.thinking_tokens == len("<think>\nHm.\n</think>")


def ask(client, **fields):
    fields = {"model": MODEL, "max_tokens": 1000, "messages": QUESTION, **fields}
    return client.messages.create(**fields)


def test_a_message(client, tokenizer):
    message = ask(client, system="Be brief.", tools=[TOOL])
    check(message)
    assert message._request_id.startswith("req_")
    assert tokenizer.rendered[-1]["messages"][0] == {"role": "system", "content": "Be brief."}
    function = tokenizer.rendered[-1]["tools"][0]["function"]
    assert function == {
        "name": "weather",
        "description": "Of days",
        "parameters": {"type": "object"},
    }


def test_a_stream(client):
    with client.messages.stream(
        model=MODEL, max_tokens=1000, messages=QUESTION, tools=[TOOL]
    ) as stream:
        events = list(stream)
        check(stream.get_final_message())
    texts = [event.text for event in events if event.type == "text"]
    assert len(texts) > 1
    assert "".join(texts) == "Grüße"
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert len(pieces) > 20
    assert "".join(pieces) == '{"city": "Paris", "days": 2}{"city": "서울", "days": 1}'
    assert events[-1].type == "message_stop"


def test_raw_events(client):
    kinds = [event.type for event in ask(client, stream=True, max_tokens=9)]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_why_it_stopped(client):
    assert ask(client, max_tokens=10).stop_reason == "max_tokens"
    stopped = ask(client, stop_sequences=["ße"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "ße")
    assert stopped.content[-1].text == "Grü"


def test_a_call_that_breaks_off_is_not_to_be_made(client):
    limit = len(ANSWER.encode()) - len('서울", "days": 1}}\n</tool_call>'.encode())
    fields = {"model": MODEL, "messages": QUESTION, "tools": [TOOL], "max_tokens": limit}
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    for message in (ask(client, **fields), streamed):
        assert message.stop_reason == "max_tokens"
        assert message.content[-1].name == "weather"
        assert message.content[-1].input == {}


def test_the_blocks_of_a_conversation_reach_the_template(client, tokenizer):
    first = ask(client, tools=[TOOL])
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": text}
        for call, text in zip(
            first.content[2:], ["fine", [{"type": "text", "text": "rain"}]], strict=True
        )
    ]
    turn = {"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]}
    assistant = {"role": "assistant", "content": first.content}
    ask(client, messages=[*QUESTION, assistant, turn], tools=[TOOL])
    _, said, fine, rain, last = tokenizer.rendered[-1]["messages"]
    assert said["reasoning_content"] == "Hm."
    assert said["content"] == "Grüße"
    assert said["tool_calls"][1]["function"]["arguments"] == {"city": "서울", "days": 1}
    assert fine == {"role": "tool", "content": "fine", "tool_call_id": first.content[2].id}
    assert rain["content"] == "rain"
    assert last == {"role": "user", "content": "And now?"}


def test_thinking_is_the_template_s_to_turn_off(client, tokenizer):
    ask(client, thinking={"type": "disabled"}, max_tokens=1)
    assert tokenizer.rendered[-1]["enable_thinking"] is False


def test_counting(client):
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be brief.")
    usage = ask(client, system="Be brief.", max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_cached_tokens_are_counted_apart(client):
    first = ask(client, system="The same long beginning " * 4, max_tokens=1).usage
    again = ask(client, system="The same long beginning " * 4, max_tokens=1).usage
    assert first.cache_read_input_tokens < again.cache_read_input_tokens
    total = first.input_tokens + first.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == total


def test_errors_are_the_client_s_own(client):
    with pytest.raises(anthropic.BadRequestError, match="temperature") as bad:
        ask(client, extra_body={"temperature": 9})
    assert bad.value.body["type"] == "error"
    assert bad.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="claude")
    with pytest.raises(anthropic.AuthenticationError) as key:
        ask(client.with_options(api_key="wrong"))
    assert key.value.body["error"]["type"] == "authentication_error"
    image = {"type": "image", "source": {"type": "url", "url": "x"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        ask(client, messages=[{"role": "user", "content": [image]}])


def block(role, **fields):
    return {"messages": [{"role": role, "content": [fields]}]}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, SCHEMA_FIELD),
        ({"output_config": {"format": {"type": "json_schema"}}}, SCHEMA_FIELD),
        ({"output_config": {"format": {"schema": {}}}}, "output_config.format.type"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        (block("assistant", type="tool_use", id="a"), "messages[0].content[0].name"),
        (block("assistant", type="tool_use", name="f", id=1), "messages[0].content[0].id"),
        (block("user", type="tool_result", tool_use_id=1), "messages[0].content[0].tool_use_id"),
    ],
)
def test_errors_name_the_field_that_was_sent(client, fields, where):
    with pytest.raises(anthropic.BadRequestError) as bad:
        ask(client, extra_body=fields)
    message = bad.value.body["error"]["message"]
    assert re.search(f"'{re.escape(where)}'[:.]", message), message


def test_an_error_in_a_stream_is_raised(serve):
    def fail(batch):
        if len(batch.tokens) == 1:
            raise RuntimeError("broken")

    server = serve(FakeExecutor(fail=fail))
    client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    with pytest.raises(anthropic.APIStatusError), client:
        list(ask(client, stream=True))
