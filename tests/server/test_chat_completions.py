"""/v1/chat/completions: what comes out, streaming and not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kt.engine.request import Request, Sampling
from tests.fakes import FakeExecutor, replying
from tests.server.harness import TextTokenizer, events

ANSWER = "Grüße aus Paris 🙂 und 東京."


def test_a_whole_answer(serve):
    server = serve(FakeExecutor(reply=replying(ANSWER)))
    body = server.chat("hi").json()
    usage = body.pop("usage")
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "fake-1b",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
    }
    # <bos> <user> h i <end> <assistant>; one token a byte and the end token.
    completion = len(ANSWER.encode()) + 1
    assert usage == {
        "prompt_tokens": 6,
        "completion_tokens": completion,
        "total_tokens": 6 + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_stream_has_openai_s_chunks(serve):
    server = serve(FakeExecutor(reply=replying(ANSWER)))
    response = server.chat("hi", stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, usage, done = events(response.text)
    assert done == "[DONE]"
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    pieces = [chunk["choices"][0]["delta"]["content"] for chunk in middle]
    assert "".join(pieces) == ANSWER
    # Every token is a byte, so characters of several bytes must not have come out in parts.
    assert not any("\ufffd" in piece for piece in pieces)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(ANSWER.encode()) + 1
    assert all(chunk["usage"] is None for chunk in [first, *middle, last])
    assert len({chunk["id"] for chunk in [first, *middle, last, usage]}) == 1
    assert {chunk["object"] for chunk in [first, *middle, last]} == {"chat.completion.chunk"}


def test_no_usage_unless_asked_for(serve):
    server = serve(FakeExecutor(reply=replying("ok")))
    *chunks, done = events(server.chat(stream=True).text)
    assert done == "[DONE]"
    assert not any("usage" in chunk for chunk in chunks)


def test_streamed_and_whole_answers_are_the_same_and_seeds_repeat(random_server):
    fields = {"max_tokens": 40, "seed": 7, "temperature": 1.2}
    whole = random_server.chat(**fields).json()["choices"][0]["message"]["content"]
    streamed = events(random_server.chat(stream=True, **fields).text)[:-1]
    assert whole == "".join(c["choices"][0]["delta"].get("content") or "" for c in streamed)
    other = random_server.chat(**{**fields, "seed": 8}).json()
    assert other["choices"][0]["message"]["content"] != whole


def test_the_engine_gets_what_was_asked_for(serve, monkeypatch):
    server = serve(FakeExecutor())
    seen: list[Request] = []
    submit = server.engine.submit
    monkeypatch.setattr(server.engine, "submit", lambda r: (seen.append(r), submit(r))[1])
    sampling = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "seed": 5,
        "ignore_eos": True,
        "min_tokens": 2,
    }
    fields = {"max_completion_tokens": 4, "stop": "abc", "logit_bias": {"65": 3}, "n": 2}
    assert server.chat(**sampling, **fields).status_code == 200
    expected = Sampling(**sampling, max_tokens=4, stop=("abc",), logit_bias={65: 3.0})
    assert seen[0].sampling == expected
    assert seen[1].sampling.seed == 6


def test_top_k_minus_one_and_nulls_mean_the_defaults(serve, monkeypatch):
    server = serve(FakeExecutor(reply=replying("ok")))
    seen: list[Request] = []
    submit = server.engine.submit
    monkeypatch.setattr(server.engine, "submit", lambda r: (seen.append(r), submit(r))[1])
    nulls = dict.fromkeys(["temperature", "seed", "stop", "max_tokens", "tools", "user", "n"])
    assert server.chat(top_k=-1, **nulls).status_code == 200
    assert seen[0].sampling == Sampling()


class RecordingTokenizer(TextTokenizer):
    def __init__(self) -> None:
        super().__init__("tools tool_calls")
        self.messages: list[dict[str, object]] = []
        self.kwargs: dict[str, object] = {}

    def encode_chat(self, messages, *, limit=None, **kwargs):
        self.messages, self.kwargs = messages, kwargs
        return super().encode_chat(messages)


def test_messages_reach_the_template(serve):
    tokenizer = RecordingTokenizer()
    server = serve(FakeExecutor(reply=replying("ok")), tokenizer)
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
        {"role": "tool", "content": "4", "tool_call_id": "call_1"},
        {"role": "user", "content": "", "name": "Ann"},
    ]
    response = server.chat(messages=messages, chat_template_kwargs={"enable_thinking": False})
    assert response.status_code == 200
    assert tokenizer.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "4", "tool_call_id": "call_1"},
        {"role": "user", "content": "", "name": "Ann"},
    ]
    assert tokenizer.kwargs == {"enable_thinking": False}


@pytest.mark.parametrize("stop", ["aus", ["Paris", "aus P"], ["x", "y", "🙂", "aus"]])
def test_stop_texts_are_not_sent(serve, stop):
    server = serve(FakeExecutor(reply=replying(ANSWER)))
    choice = server.chat(stop=stop).json()["choices"][0]
    assert choice["message"]["content"] == "Grüße "
    assert choice["finish_reason"] == "stop"


def test_the_token_limit_is_a_length(serve):
    server = serve(FakeExecutor(reply=replying(ANSWER)))
    body = server.chat(max_tokens=2).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "Gr"
    assert body["usage"]["completion_tokens"] == 2


def test_a_huge_token_limit_ends_at_the_context(serve):
    server = serve(FakeExecutor(context=64))
    body = server.chat("x", max_tokens=1 << 20, ignore_eos=True).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] in (64, 65)


def test_several_answers(serve):
    server = serve(FakeExecutor())
    fields = {"n": 3, "seed": 1, "max_tokens": 12, "ignore_eos": True}
    body = server.chat(**fields).json()
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert body["usage"]["completion_tokens"] == 36
    assert body["usage"]["prompt_tokens"] == len("hello") + 4
    *chunks, done = events(server.chat(stream=True, **fields).text)
    streamed = ["", "", ""]
    for chunk in chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert streamed == texts
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert done == "[DONE]"


def test_logprobs(serve):
    server = serve(FakeExecutor(reply=replying("hé")))
    body = server.chat(logprobs=True, top_logprobs=2).json()
    content = body["choices"][0]["logprobs"]["content"]
    # The end token is part of the answer's tokens, but not of its text.
    assert "".join(token["token"] for token in content) == "hé"
    h = content[0]
    assert (h["token"], h["bytes"]) == ("h", [104])
    assert h["logprob"] == pytest.approx(0, abs=1e-6)
    assert h["top_logprobs"][0]["token"] == "h"
    assert all(len(token["top_logprobs"]) == 2 for token in content)
    # A half of a character has no text of its own.
    assert content[1]["top_logprobs"][0] == {"token": "\ufffd", "logprob": 0.0, "bytes": None}
    assert b"".join(bytes(token["bytes"] or []) for token in content) == "hé".encode()
    without = server.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert all(token["top_logprobs"] == [] for token in without)


def test_logprobs_in_a_stream(serve):
    server = serve(FakeExecutor(reply=replying("hi!")))
    chunks = events(server.chat(stream=True, logprobs=True, top_logprobs=1).text)[:-1]
    tokens = [
        token["top_logprobs"][0]["token"]
        for chunk in chunks
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert tokens[:3] == ["h", "i", "!"]


def test_parallel_streams_do_not_mix(serve):
    server = serve(FakeExecutor(latency=0.001))
    fields = {"max_tokens": 30, "temperature": 0}
    questions = [f"question {i}" for i in range(12)]

    def ask(question: str) -> str:
        chunks = events(server.chat(question, stream=True, **fields).text)[:-1]
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)

    alone = [ask(question) for question in questions]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, questions))
    assert together == alone
    assert len(set(alone)) == len(questions)
    server.wait_until_idle()


def test_a_failing_step_is_told(serve):
    def fail(batch):
        if len(batch.tokens) == 1:
            raise RuntimeError("broken")

    server = serve(FakeExecutor(fail=fail))
    response = server.chat()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    *chunks, last = events(server.chat(stream=True).text)
    assert last["error"]["type"] == "server_error"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
