"""How /v1/responses words an answer: output items, and events while they grow."""

from __future__ import annotations

import time
import uuid
from typing import Any

from kt.engine.request import Finished
from kt.server.chat_form import call_id
from kt.server.output import Piece, Text
from kt.server.responses_request import ResponsesRequest
from kt.server.tool_parsers import CallEnd, CallStart, CallText

Event = dict[str, Any]


class ResponsesForm:
    """One response. `add` and `end` return the events that a stream sends."""

    def __init__(self, body: ResponsesRequest, model: str) -> None:
        self._output: list[dict[str, Any]] = []
        self._current = ""  # kind of the last item, if it still grows
        self._count = 0
        self._response: dict[str, Any] = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": body.text.format.type if body.text.format else "text"}},
            "tool_choice": body.tool_choice,
            "tools": [tool.model_dump() for tool in body.tools],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def begin(self) -> list[Event]:
        return [
            self._event("response.created", response=dict(self._response)),
            self._event("response.in_progress", response=dict(self._response)),
        ]

    def add(self, piece: Piece) -> list[Event]:
        match piece:
            case Text():
                return self._text("message" if piece.kind == "content" else "reasoning", piece.text)
            case CallStart():
                return self._close() + self._open_call(piece)
            case CallText(text):
                self._output[-1]["arguments"] += text
                return [self._in_item("response.function_call_arguments.delta", delta=text)]
            case CallEnd(whole):
                return self._close_call(whole)

    def end(self, finished: Finished, reasoning_tokens: int) -> list[Event]:
        cut = finished.reason == "length"
        events = self._close(cut)
        status = "incomplete" if cut else "completed"
        self._response |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": finished.prompt_tokens,
                "input_tokens_details": {"cached_tokens": finished.cached_tokens},
                "output_tokens": finished.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
                "total_tokens": finished.prompt_tokens + finished.completion_tokens,
            },
        }
        return [*events, self._event(f"response.{status}", response=self._response)]

    def fail(self, message: str, code: str) -> list[Event]:
        """The last event of a stream that breaks off."""
        error = {"code": code, "message": message}
        self._response |= {"status": "failed", "error": error, "output": self._output}
        return [self._event("response.failed", response=self._response)]

    def whole(self) -> dict[str, Any]:
        """The response, after `end`."""
        return self._response

    def _event(self, kind: str, **fields: Any) -> Event:
        self._count += 1
        return {"type": kind, "sequence_number": self._count - 1, **fields}

    def _in_item(self, kind: str, **fields: Any) -> Event:
        item = self._output[-1]
        place = {"item_id": item["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **place, **fields)

    def _in_part(self, kind: str, **fields: Any) -> Event:
        return self._in_item(kind, content_index=0, **fields)

    def _item(self, kind: str) -> Event:
        index = len(self._output) - 1
        return self._event(kind, output_index=index, item=_copy(self._output[-1]))

    def _open(self, kind: str) -> list[Event]:
        self._current = kind
        id_ = uuid.uuid4().hex
        item: dict[str, Any]
        part: dict[str, Any]
        if kind == "message":
            item = {"id": f"msg_{id_}", "type": kind, "role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"id": f"rs_{id_}", "type": kind, "summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        item["status"] = "in_progress"
        self._output.append(item)
        events = [self._item("response.output_item.added")]
        item["content"] = [part]
        if kind == "message":
            events.append(self._in_part("response.content_part.added", part=dict(part)))
        return events

    def _close(self, cut: bool = False) -> list[Event]:
        """Ends the item that grows. cut: by the token limit."""
        if not self._current:
            return []
        kind, self._current = self._current, ""
        item = self._output[-1]
        part = item["content"][0]
        item["status"] = "incomplete" if cut else "completed"
        if kind == "message":
            text = {"text": part["text"], "logprobs": []}
            events = [
                self._in_part("response.output_text.done", **text),
                self._in_part("response.content_part.done", part=dict(part)),
            ]
        else:
            events = [self._in_part("response.reasoning_text.done", text=part["text"])]
        return [*events, self._item("response.output_item.done")]

    def _text(self, kind: str, text: str) -> list[Event]:
        """kind: of the item that grows."""
        events = [] if self._current == kind else self._close() + self._open(kind)
        part = self._output[-1]["content"][0]
        part["text"] += text
        name = "response.output_text" if kind == "message" else "response.reasoning_text"
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*events, self._in_part(f"{name}.delta", delta=text, **more)]

    def _open_call(self, call: CallStart) -> list[Event]:
        self._output.append(
            {
                "id": f"fc_{uuid.uuid4().hex}",
                "type": "function_call",
                "call_id": call_id(call),
                "name": call.name,
                "arguments": "",
                "status": "in_progress",
            }
        )
        return [self._item("response.output_item.added")]

    def _close_call(self, whole: bool) -> list[Event]:
        item = self._output[-1]
        item["status"] = "completed" if whole else "incomplete"
        named = {"name": item["name"], "arguments": item["arguments"]}
        done = self._in_item("response.function_call_arguments.done", **named)
        return [done, self._item("response.output_item.done")]


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    content = item.get("content")
    return {**item, "content": list(content)} if content is not None else dict(item)
