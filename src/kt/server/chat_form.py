"""How /v1/chat/completions words an answer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from kt.engine.request import Delta, TokenInfo
from kt.server.answer_reader import AnswerReader, read
from kt.server.chat import Turn
from kt.server.generation import Answer
from kt.server.output import Piece, Text
from kt.server.stream import Choice
from kt.server.tool_parsers import Call, CallStart, CallText

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer


def call_id(call: Call | CallStart) -> str:
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
        self._readers: dict[int, AnswerReader] = {}
        self.reasoning_tokens = 0

    def opening(self, index: int) -> list[Choice]:
        return [self._chunk(index, {"role": "assistant", "content": "", "refusal": None})]

    def piece(self, index: int, delta: Delta) -> list[Choice]:
        chunks = self._told(index, self._reader(index).push(delta))
        if self._logprobs and delta.tokens:
            chunks = chunks or [self._chunk(index, {})]
            chunks[0]["logprobs"] = self._logprobs_of(delta.tokens)
        return chunks

    def ending(self, index: int, reason: str) -> list[Choice]:
        reader = self._reader(index)
        chunks = self._told(index, reader.finish(reason))
        self.reasoning_tokens += reader.reasoning_tokens
        reason = _finish_reason(reason, reader.calls)
        return [*chunks, {**self._chunk(index, {}), "finish_reason": reason}]

    def whole(self, index: int, answer: Answer, reason: str) -> Choice:
        reader = self._reader(index)
        told = read(reader, answer)
        calls = told.calls
        self.reasoning_tokens += reader.reasoning_tokens
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
            "finish_reason": _finish_reason(reason, reader.calls),
        }

    def _reader(self, index: int) -> AnswerReader:
        if index not in self._readers:
            self._readers[index] = AnswerReader(self._turn)
        return self._readers[index]

    def _told(self, index: int, pieces: list[Piece]) -> list[Choice]:
        chunks = []
        number = self._reader(index).begun - 1 - sum(isinstance(p, CallStart) for p in pieces)
        for piece in pieces:
            number += isinstance(piece, CallStart)
            delta = _delta(number, piece)
            if delta:
                chunks.append(self._chunk(index, delta))
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


def _delta(number: int, piece: Piece) -> dict[str, Any]:
    """number: of the call that the piece belongs to, if it does."""
    match piece:
        case Text(kind, text):
            return {"content" if kind == "content" else "reasoning_content": text}
        case CallStart():
            function = {"name": piece.name, "arguments": ""}
            head = {"id": call_id(piece), "type": "function", "function": function}
            return {"tool_calls": [{"index": number, **head}]}
        case CallText(text):
            return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}
        case _:
            return {}


def _finish_reason(reason: str, calls: int) -> str:
    """calls: whole ones."""
    return "tool_calls" if calls and reason == "stop" else reason


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    """bytes is null for a token without text of its own, such as a part of a character."""
    content = None if not text or "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": content}
