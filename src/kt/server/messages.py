"""How /v1/messages words an answer: content blocks, and events while they grow."""

from __future__ import annotations

import json
import uuid
from typing import Any

from kt.engine.request import Finished
from kt.server.chat_form import call_id
from kt.server.output import Piece
from kt.server.tool_parsers import Call

Event = dict[str, Any]


class MessagesForm:
    """One message. `add` and `end` return the events that a stream sends."""

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self._content: list[dict[str, Any]] = []
        self._growing = ""  # kind of the last block, if it still grows
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
        if isinstance(piece, Call):
            return self._call(piece)
        kind = "text" if piece.kind == "content" else "thinking"
        events: list[Event] = []
        if self._growing != kind:
            events = self._close()
            signature = {"signature": ""} if kind == "thinking" else {}
            events += self._open({"type": kind, kind: "", **signature})
            self._growing = kind
        self._content[-1][kind] += piece.text
        return [*events, self._delta({"type": f"{kind}_delta", kind: piece.text})]

    def end(self, finished: Finished) -> list[Event]:
        events = self._close()
        if not self._content:  # clients expect at least one block
            events += self._open({"type": "text", "text": ""}) + self._stop()
        called = any(block["type"] == "tool_use" for block in self._content)
        reason = "tool_use" if called else "stop_sequence" if finished.stop else "end_turn"
        if finished.reason == "length":
            reason = "max_tokens"
        usage = _usage(finished.prompt_tokens, finished.cached_tokens, finished.completion_tokens)
        stop = {"stop_reason": reason, "stop_sequence": finished.stop}
        self._message |= {**stop, "content": self._content, "usage": usage}
        delta = {"type": "message_delta", "delta": stop, "usage": usage}
        return [*events, delta, {"type": "message_stop"}]

    def fail(self, message: str, code: str) -> list[Event]:
        """The last event of a stream that breaks off."""
        return [{"type": "error", "error": {"type": code, "message": message}}]

    def whole(self) -> dict[str, Any]:
        """The message, after `end`."""
        return self._message

    def _call(self, call: Call) -> list[Event]:
        id_ = call_id(call)
        head = {"type": "tool_use", "id": id_, "name": call.name, "input": {}}
        events = self._close() + self._open(head)
        events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        self._content[-1]["input"] = json.loads(call.arguments)
        return events + self._stop()

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
