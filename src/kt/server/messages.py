"""How /v1/messages words an answer: content blocks, and events while they grow."""

from __future__ import annotations

import json
import uuid
from typing import Any

from kt.engine.request import Finished
from kt.server.chat_form import call_id
from kt.server.output import Piece, Text
from kt.server.tool_parsers import CallEnd, CallStart, CallText

Event = dict[str, Any]


class MessagesForm:
    """One message. `add` and `end` return the events that a stream sends."""

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self._content: list[dict[str, Any]] = []
        self._growing = ""  # kind of the last block, if it still grows
        self._arguments = ""  # of the call that grows
        self._called = False  # a whole call was told
        self._message: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, 0, 0),
        }

    def begin(self) -> list[Event]:
        return [{"type": "message_start", "message": dict(self._message)}]

    def add(self, piece: Piece) -> list[Event]:
        match piece:
            case Text():
                return self._text("text" if piece.kind == "content" else "thinking", piece.text)
            case CallStart():
                head = {"type": "tool_use", "id": call_id(piece), "name": piece.name, "input": {}}
                self._arguments = ""
                return self._close() + self._open(head)
            case CallText(text):
                self._arguments += text
                return [self._delta({"type": "input_json_delta", "partial_json": text})]
            case CallEnd(whole):
                self._called = self._called or whole
                # Of a call that broke off nothing may be run; the stop reason says that it did.
                self._content[-1]["input"] = json.loads(self._arguments) if whole else {}
                return self._stop()

    def end(self, finished: Finished, reasoning_tokens: int) -> list[Event]:
        events = self._close()
        if not self._content:  # clients expect at least one block
            events += self._open({"type": "text", "text": ""}) + self._stop()
        reason = "tool_use" if self._called else "stop_sequence" if finished.stop else "end_turn"
        if finished.reason == "length":
            reason = "max_tokens"
        usage = _usage(finished.prompt_tokens, finished.cached_tokens, finished.completion_tokens)
        details = {"output_tokens_details": {"thinking_tokens": reasoning_tokens}}
        stop = {"stop_reason": reason, "stop_sequence": finished.stop}
        self._message |= {**stop, "content": self._content, "usage": {**usage, **details}}
        delta = {"type": "message_delta", "delta": stop, "usage": {**usage, **details}}
        return [*events, delta, {"type": "message_stop"}]

    def fail(self, message: str, code: str) -> list[Event]:
        """The last event of a stream that breaks off."""
        return [{"type": "error", "error": {"type": code, "message": message}}]

    def whole(self) -> dict[str, Any]:
        """The message, after `end`."""
        return self._message

    def _text(self, kind: str, text: str) -> list[Event]:
        """kind: "text" or "thinking"."""
        events: list[Event] = []
        if self._growing != kind:
            events = self._close()
            signature = {"signature": ""} if kind == "thinking" else {}
            events += self._open({"type": kind, kind: "", **signature})
            self._growing = kind
        self._content[-1][kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _open(self, block: dict[str, Any]) -> list[Event]:
        self._content.append(block)
        index = len(self._content) - 1
        return [{"type": "content_block_start", "index": index, "content_block": dict(block)}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta}

    def _close(self) -> list[Event]:
        if not self._growing:
            return []
        self._growing = ""
        return self._stop()

    def _stop(self) -> list[Event]:
        return [{"type": "content_block_stop", "index": len(self._content) - 1}]


def _usage(prompt: int, cached: int, completion: int) -> dict[str, int]:
    """Anthropic counts what came from the cache apart."""
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": completion,
    }
