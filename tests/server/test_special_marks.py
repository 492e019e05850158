"""Marks that are special tokens, as gpt-oss's: what the parser sees and the grammar forces."""

from __future__ import annotations

import codecs
import json
from typing import ClassVar

import pytest

from kt.server.harmony import MARKS
from tests.fakes import ASSISTANT, END, SPECIAL, VOCAB, FakeExecutor
from tests.server.harness import TextTokenizer, events, running

IDS = {mark: VOCAB + i for i, mark in enumerate(MARKS)}
TEXTS = {id_: mark for mark, id_ in IDS.items()}


class Detokenizer:
    """Bytes, and the special tokens that are shown."""

    def __init__(self, shown: tuple[str, ...]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = shown

    def push(self, token_id: int) -> str:
        if token_id < 256:
            return self._decoder.decode(bytes([token_id]))
        text = TEXTS.get(token_id, "")
        return text if text in self._shown else ""

    def flush(self) -> str:
        return ""


class HarmonyTokenizer(TextTokenizer):
    special_ids: ClassVar[dict[str, int]] = SPECIAL | IDS
    eos_ids = frozenset({END, IDS["<|call|>"], IDS["<|return|>"]})

    def token_bytes(self) -> list[bytes]:
        return [*super().token_bytes(), *(mark.encode() for mark in MARKS)]

    def detokenizer(self, skip_special=True, shown=()):
        return Detokenizer(shown)


def tokens(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        mark = next((mark for mark in MARKS if text.startswith(mark)), None)
        ids += [IDS[mark]] if mark else list(text[0].encode())
        text = text[len(mark) if mark else 1 :]
    return ids


def saying(text: str):
    """A reply for FakeExecutor, token by token; behind its end the model would babble."""
    answer = tokens(text)

    def reply(history: list[int]) -> int:
        said = history[::-1].index(ASSISTANT)
        return answer[said] if said < len(answer) else ord("?")

    return reply


THOUGHT = "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
SCHEMA |= {"required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture
def harmony():
    def start(text: str):
        executor = FakeExecutor(vocab=VOCAB + len(MARKS), reply=saying(text), context=4096)
        tokenizer = HarmonyTokenizer("<|channel|> tools")
        return running(executor, tokenizer)

    return start


def test_channels_and_a_call(harmony):
    call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    with harmony(THOUGHT + call + '{"city": "Rome"}<|call|>') as server:
        choice = server.chat(tools=[TOOL]).json()["choices"][0]
        chunks = events(server.chat(tools=[TOOL], stream=True).text)[:-1]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "They ask."
    assert choice["message"]["content"] is None
    function = choice["message"]["tool_calls"][0]["function"]
    assert function == {"name": "weather", "arguments": '{"city": "Rome"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "They ask."
    head, *pieces = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert head["function"] == {"name": "weather", "arguments": ""}
    assert len(pieces) > 5
    assert "".join(p["function"]["arguments"] for p in pieces) == '{"city": "Rome"}'


@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_a_forced_call(harmony, thought):
    with harmony(thought) as server:
        choice = server.chat(tools=[TOOL], tool_choice="required", seed=1).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    assert choice["message"].get("reasoning_content", "") == ("They ask." if thought else "")


@pytest.mark.parametrize("kind", ["", " <|constrain|>json"])
def test_an_answer_in_its_schema(harmony, kind):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    with harmony(THOUGHT + f"<|channel|>final{kind}<|message|>") as server:
        message = server.chat(response_format=wanted, seed=1).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "They ask."
    assert json.loads(message["content"])["city"] in ("Paris", "Rome")


def test_an_answer_that_matches_a_regular_expression(harmony):
    with harmony(THOUGHT + "<|channel|>final<|message|>") as server:
        message = server.chat(guided_regex="(yes|no)", seed=1).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "They ask."
    assert message["content"] in ("yes", "no")


def test_a_call_or_an_answer_in_its_schema(harmony):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for start in (
        "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
    ):
        with harmony(start) as server:
            choice = server.chat(tools=[TOOL], response_format=wanted, seed=1).json()["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        text = calls[0]["function"]["arguments"] if calls else message["content"]
        assert bool(calls) == ("functions" in start)
        assert json.loads(text)["city"] in ("Paris", "Rome")
