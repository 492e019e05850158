"""How /v1/chat/completions words an answer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from kt.engine.request import Delta, TokenInfo
from kt.server.chat import Turn
from kt.server.generation import Answer
from kt.server.output import Message, OutputParser, Piece
from kt.server.stream import Choice
from kt.server.tool_parsers import Call

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer


class Reader:
    """Reads one answer. calls: how many tool calls were told."""

    def __init__(self, turn: Turn) -> None:
        self._parser: OutputParser = turn.parser()
        self._parallel = turn.parallel
        self.calls = 0

    def push(self, text: str) -> list[Piece]:
        return self._kept(self._parser.push(text))

    def finish(self, reason: str) -> list[Piece]:
        """reason: why the engine ended the answer."""
        return self._kept(self._parser.finish(reason == "stop"))

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        kept = []
        for piece in pieces:
            if isinstance(piece, Call):
                if self.calls and not self._parallel:
                    continue
                self.calls += 1
            kept.append(piece)
        return kept


def read(turn: Turn, answer: Answer) -> Message:
    """The message of a whole answer."""
    assert answer.finished is not None
    reader, message = Reader(turn), Message()
    message.add(reader.push("".join(answer.text)))
    message.add(reader.finish(answer.finished.reason))
    return message


def call_id(call: Call) -> str:
    """The model's own name for the call, or a new one."""
    return call.id or f"call_{uuid.uuid4().hex[:24]}"


class ChatForm:
    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, turn: Turn, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._turn = turn
        self._logprobs = logprobs
        self._readers: dict[int, Reader] = {}

    def opening(self, index: int) -> list[Choice]:
        return [self._chunk(index, {"role": "assistant", "content": "", "refusal": None})]

    def piece(self, index: int, delta: Delta) -> list[Choice]:
        chunks = self._told(index, self._reader(index).push(delta.text))
        if self._logprobs and delta.tokens:
            chunks = chunks or [self._chunk(index, {})]
            chunks[0]["logprobs"] = self._logprobs_of(delta.tokens)
        return chunks

    def ending(self, index: int, reason: str) -> list[Choice]:
        reader = self._reader(index)
        chunks = self._told(index, reader.finish(reason))
        reason = _finish_reason(reason, reader.calls)
        return [*chunks, {**self._chunk(index, {}), "finish_reason": reason}]

    def whole(self, index: int, answer: Answer, reason: str) -> Choice:
        told = read(self._turn, answer)
        calls = told.calls if self._turn.parallel else told.calls[:1]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": told.content if told.content or not calls else None,
            "refusal": None,
        }
        if told.reasoning:
            message["reasoning_content"] = told.reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call_id(call),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs_of(answer.tokens) if self._logprobs else None,
            "finish_reason": _finish_reason(reason, len(calls)),
        }

    def _reader(self, index: int) -> Reader:
        if index not in self._readers:
            self._readers[index] = Reader(self._turn)
        return self._readers[index]

    def _told(self, index: int, pieces: list[Piece]) -> list[Choice]:
        chunks = []
        first = self._reader(index).calls - sum(isinstance(piece, Call) for piece in pieces)
        for piece in pieces:
            if isinstance(piece, Call):
                chunks += [self._chunk(index, {"tool_calls": [c]}) for c in _call(first, piece)]
                first += 1
            else:
                field = "content" if piece.kind == "content" else "reasoning_content"
                chunks.append(self._chunk(index, {field: piece.text}))
        return chunks

    @staticmethod
    def _chunk(index: int, delta: dict[str, Any]) -> Choice:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs_of(self, tokens: list[TokenInfo]) -> dict[str, Any]:
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: TokenInfo) -> dict[str, Any]:
        decode = self._tokenizer.decode
        best = [_entry(decode([id], skip_special=False), logprob) for id, logprob in token.best]
        return {**_entry(token.text, token.logprob), "top_logprobs": best}


def _call(number: int, call: Call) -> list[dict[str, Any]]:
    """The deltas of a call: its name, then its arguments."""
    function = {"name": call.name, "arguments": ""}
    head = {"index": number, "id": call_id(call), "type": "function", "function": function}
    return [head, {"index": number, "function": {"arguments": call.arguments}}]


def _finish_reason(reason: str, calls: int) -> str:
    return "tool_calls" if calls and reason == "stop" else reason


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    """bytes is null for a token without text of its own, such as a part of a character."""
    content = None if not text or "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": content}
