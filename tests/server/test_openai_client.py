"""The official Python client, unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.fakes import FakeExecutor, replying
from tests.server.harness import MODEL, running

ANSWER = "Grüße 🙂"
QUESTION = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    executor = FakeExecutor(reply=replying(ANSWER), context=256)
    with running(executor, api_keys=["key"]) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client:
            yield client


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer._request_id.startswith("req_")


def test_what_was_answered_can_be_sent_back(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION).choices[0].message
    again = client.chat.completions.create(model=MODEL, messages=[*QUESTION, answer, *QUESTION])
    assert again.choices[0].message.content == ANSWER
    dumped = [*QUESTION, answer.model_dump(), *QUESTION]
    assert client.chat.completions.create(model=MODEL, messages=dumped).choices


def test_chat_stream(client):
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len(ANSWER.encode()) + 1


def test_the_stream_helper(client):
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, logprobs=True, top_logprobs=1
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        whole = stream.get_final_completion()
    assert text == ANSWER
    assert whole.choices[0].message.content == ANSWER
    assert "".join(token.token for token in whole.choices[0].logprobs.content) == ANSWER


def test_completions(client):
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.tokens) == 3
    chunks = list(client.completions.create(model=MODEL, prompt="a", max_tokens=9, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve("/models/fake.gguf").id == MODEL


def test_extensions_in_extra_body(client):
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True}
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=30, extra_body=extra
    )
    assert answer.usage.completion_tokens == 30


def test_errors_are_the_client_s_own(client):
    def ask(**fields):
        return client.chat.completions.create(
            **{"model": MODEL, "messages": QUESTION, "max_tokens": 1} | fields
        )

    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-4")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        ask(temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        ask(messages=[{"role": "user", "content": "x" * 300}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.APIStatusError) as large:
        ask(messages=[{"role": "user", "content": "x" * 10_000_000}])
    assert large.value.status_code == 413


def test_an_error_in_a_stream_is_raised(serve):
    def fail(batch):
        if len(batch.tokens) == 1:
            raise RuntimeError("broken")

    server = serve(FakeExecutor(fail=fail))
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    with pytest.raises(openai.APIError), client:
        list(client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True))
