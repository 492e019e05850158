"""/tokenize and /detokenize, echo and prompt log probabilities."""

from __future__ import annotations

import pytest

from tests.fakes import ASSISTANT, BOS, END, USER, FakeExecutor, replying
from tests.server.harness import MODEL, events


def test_a_text_to_ids_and_back(random_server):
    http = random_server.http
    body = http.post("/tokenize", json={"prompt": "hi<|end|>"}).json()
    ids = [BOS, *b"hi", END]
    assert body == {"count": len(ids), "max_model_len": 1024, "tokens": ids}
    text = http.post("/detokenize", json={"model": MODEL, "tokens": ids}).json()
    assert text == {"prompt": "<|bos|>hi<|end|>"}
    plain = http.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()
    assert plain["tokens"] == [97]


def test_messages_to_ids(random_server):
    messages = [{"role": "user", "content": "a"}]
    body = random_server.http.post("/tokenize", json={"messages": messages}).json()
    assert body["tokens"] == [BOS, USER, 97, END, ASSISTANT]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": []}, 400),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400),
        ("/tokenize", {"prompt": "a", "model": "gpt-4"}, 404),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": "a"}, 400),
    ],
)
def test_what_is_refused(random_server, path, body, status):
    assert random_server.http.post(path, json=body).status_code == status


def test_echo(serve):
    server = serve(FakeExecutor(reply=replying("abcdefghij")))
    fields = {"max_tokens": 2, "echo": True}
    text = server.complete("<|user|>é", **fields).json()["choices"][0]["text"]
    assert text.startswith("<|user|>é")
    assert len(text) == len("<|user|>é") + 2
    whole = server.complete([97, 98], **fields, n=2).json()
    assert [choice["text"] for choice in whole["choices"]] == ["abcd", "abcd"]
    chunks = events(server.complete([97, 98], **fields, stream=True).text)[:-1]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcd"


def test_echo_with_log_probabilities(serve):
    server = serve(FakeExecutor(reply=replying("abcdefghij")))
    fields = {"echo": True, "logprobs": 2, "max_tokens": 2}
    body = server.complete([97, 98, 99], **fields).json()["choices"][0]
    logprobs = body["logprobs"]
    assert body["text"] == "abcde"
    assert logprobs["tokens"] == ["a", "b", "c", "d", "e"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx([0.0] * 4, abs=1e-6)
    assert [len(best) for best in logprobs["top_logprobs"][1:]] == [2] * 4
    chunks = events(server.complete([97, 98, 99], **fields, stream=True).text)[:-1]
    joined = [t for c in chunks for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    assert joined == logprobs["tokens"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcde"


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_prompt_alone_is_scored(serve, logprobs):
    server = serve(FakeExecutor(reply=replying("abcdefghij")))
    body = server.complete([97, 98, 99], echo=True, max_tokens=0, logprobs=logprobs).json()
    choice = body["choices"][0]
    assert choice["text"] == "abc"
    assert body["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"
    assert (choice["logprobs"] is None) == (logprobs is None)
    response = server.complete("x", max_tokens=0)
    assert response.status_code == 400
    assert "echo" in response.json()["error"]["message"]
