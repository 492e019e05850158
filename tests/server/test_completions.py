"""/v1/completions: what comes out, streaming and not."""

from __future__ import annotations

import pytest

from tests.fakes import BOS, END, USER, FakeExecutor, replying
from tests.server.harness import events


def test_a_whole_answer(serve):
    # The reply starts at once, so the text goes on where the prompt's length puts it.
    server = serve(FakeExecutor(reply=replying("abcdefghij")))
    body = server.complete([1, 2, 3], max_tokens=4).json()
    assert body.pop("id").startswith("cmpl-")
    body.pop("created")
    assert body == {
        "object": "text_completion",
        "model": "fake-1b",
        "choices": [{"index": 0, "text": "defg", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_sixteen_tokens_unless_asked_otherwise(random_server):
    body = random_server.complete("x", ignore_eos=True).json()
    assert body["usage"]["completion_tokens"] == 16


def test_a_stream(serve):
    server = serve(FakeExecutor(reply=replying("abcdefghij")))
    *chunks, usage, done = events(
        server.complete(
            [1, 2, 3], max_tokens=4, stream=True, stream_options={"include_usage": True}
        ).text
    )
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["d", "e", "f", "g", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 7


def test_text_gets_one_bos_and_ids_are_taken_as_they_are(random_server):
    fields = {"max_tokens": 8, "temperature": 0}
    text = random_server.complete("ab", **fields).json()
    ids = random_server.complete([BOS, 97, 98], **fields).json()
    assert text["choices"][0]["text"] == ids["choices"][0]["text"]
    assert text["usage"]["prompt_tokens"] == 3


def test_marks_in_a_text_are_special_tokens(random_server):
    fields = {"max_tokens": 8, "temperature": 0}
    text = random_server.complete("<|user|>ab<|end|>", **fields).json()
    ids = random_server.complete([BOS, USER, 97, 98, END], **fields).json()
    assert text["choices"][0]["text"] == ids["choices"][0]["text"]


@pytest.mark.parametrize("prompts", [["ab", "cd"], [[257, 97, 98], [257, 99, 100]]])
def test_several_prompts_and_answers_are_ordered_by_prompt(random_server, prompts):
    fields = {"max_tokens": 6, "temperature": 0}
    body = random_server.complete(prompts, n=2, **fields).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    alone = [
        random_server.complete(prompt, **fields).json()["choices"][0]["text"] for prompt in prompts
    ]
    assert texts == [alone[0], alone[0], alone[1], alone[1]]
    assert body["usage"]["prompt_tokens"] == 6


def test_logprobs(serve):
    server = serve(FakeExecutor(reply=replying("aébc")))
    choice = server.complete([1], max_tokens=4, logprobs=1).json()["choices"][0]
    # "é" is two tokens; the first one has no text yet.
    assert choice["text"] == "ébc"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["", "é", "b", "c"]
    assert logprobs["text_offset"] == [0, 0, 1, 2]
    assert logprobs["token_logprobs"] == pytest.approx([0] * 4, abs=1e-6)
    assert [list(best) for best in logprobs["top_logprobs"]][2:] == [["b"], ["c"]]


class EndIsSecondBest(FakeExecutor):
    def forward(self, batch):
        logits = super().forward(batch)
        logits[:, END] += 50
        return logits


def test_special_tokens_have_their_names_among_the_best(serve):
    server = serve(EndIsSecondBest(reply=lambda _: ord("a")))
    completion = server.complete("x", logprobs=2, max_tokens=1).json()["choices"][0]
    assert list(completion["logprobs"]["top_logprobs"][0]) == ["a", "<|end|>"]
    chat = server.chat("x", logprobs=True, top_logprobs=2, max_tokens=1).json()["choices"][0]
    (token,) = chat["logprobs"]["content"]
    assert [best["token"] for best in token["top_logprobs"]] == ["a", "<|end|>"]


def test_offsets_in_a_stream_count_from_the_start(serve):
    server = serve(FakeExecutor(reply=replying("abcdef")))
    chunks = events(server.complete([1], max_tokens=4, logprobs=0, stream=True).text)[:-1]
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry["text_offset"] for entry in logprobs if entry] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], ["a", [1]], [1, "a"], [True], [-1], [1.5], 5, {"a": 1}, [None], [["a"]]],
    ids=repr,
)
def test_a_prompt_of_another_kind_is_refused(random_server, prompt):
    response = random_server.complete(prompt)
    if prompt == "":
        # An empty text is the BOS alone, which is a prompt.
        assert response.status_code == 200
        return
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("prompt", "prompt[0]")


@pytest.mark.parametrize(
    "fields",
    [{"best_of": 3}, {"suffix": "x"}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_not_there_yet_is_refused_by_name(random_server, fields):
    error = random_server.complete(**fields).json()["error"]
    assert error["param"] == next(iter(fields))
    assert error["code"] == "unsupported_parameter"


def test_too_many_answers(random_server):
    response = random_server.complete(["a"] * 64, n=16)
    assert response.status_code == 400
    assert "64 prompts" in response.json()["error"]["message"]


def test_an_id_outside_the_vocabulary(random_server):
    response = random_server.complete([260])
    assert response.status_code == 400
    assert "260" in response.json()["error"]["message"]
