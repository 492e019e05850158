"""Answers in OpenAI's forms: events while they grow, or one object when they are complete."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from kt.engine.request import Delta, Finished
from kt.server.connection import STREAM_MARK
from kt.server.errors import ApiError, internal
from kt.server.generation import CLIENT_LEFT, Answer, Answers, collect, while_connected
from kt.server.schemas import Generation

Choice = dict[str, Any]


class Form(Protocol):
    """How one endpoint words its choices. reasoning_tokens: of all those that have ended."""

    id_prefix: str
    object: str
    chunk_object: str
    reasoning_tokens: int

    def opening(self, index: int) -> list[Choice]:
        """The chunks that precede an answer's text."""

    def piece(self, index: int, delta: Delta) -> list[Choice]:
        """The chunks with new text; none if there is nothing to say."""

    def ending(self, index: int, reason: str) -> list[Choice]:
        """What was held back, and the chunk that carries the finish reason."""

    def whole(self, index: int, answer: Answer, reason: str) -> Choice:
        """A complete answer."""


async def respond(
    http: HttpRequest, body: Generation, answers: Answers, form: Form, model: str
) -> Response:
    """The response, streaming or not; the answers are cancelled if the client leaves."""
    head = {"id": form.id_prefix + uuid.uuid4().hex, "created": int(time.time()), "model": model}
    if body.stream:
        return EventStream(_events(answers, form, head, body), answers)
    try:
        whole = await while_connected(http, collect(answers))
    finally:
        answers.cancel()
    finished = [answer.finished for answer in whole if answer.finished is not None]
    choices = [form.whole(i, answer, finished[i].reason) for i, answer in enumerate(whole)]
    usage = usage_of(finished, body.n, form.reasoning_tokens)
    return JSONResponse({**head, "object": form.object, "choices": choices, "usage": usage})


class EventStream(StreamingResponse):
    """Sends events until they end or the client leaves; then nothing goes on in the engine."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], answers: Answers) -> None:
        super().__init__(content, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.answers = answers
        self._whole = False  # all has been sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STREAM_MARK] = True
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self._whole:
                scope["state"]["status"] = CLIENT_LEFT
            self.answers.cancel()

    async def stream_response(self, send: Send) -> None:
        await super().stream_response(send)
        self._whole = True


def event(content: dict[str, Any], name: str = "") -> bytes:
    """One event; ASCII, because some clients also split lines at U+2028 and its like."""
    head = f"event: {name}\n".encode("ascii") if name else b""
    return head + b"data: " + _encoded(content) + b"\n\n"


class _Chunks:
    """Events of one stream. What they have in common is encoded once."""

    def __init__(self, head: dict[str, Any]) -> None:
        """head: everything but the choices; not empty."""
        self._before = b"data: " + _encoded(head)[:-1] + b',"choices":['

    def __call__(self, choice: Choice) -> bytes:
        return self._before + _encoded(choice) + b"]}\n\n"


_encoder = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make one each time


def _encoded(content: dict[str, Any]) -> bytes:
    return _encoder.encode(content).encode("ascii")


async def _events(
    answers: Answers, form: Form, head: dict[str, Any], body: Generation
) -> AsyncIterator[bytes]:
    head = {**head, "object": form.chunk_object}
    chunk = _Chunks({**head, "usage": None} if body.include_usage else head)
    finished: list[Finished] = []
    try:
        for index in range(len(answers.handles)):
            for choice in form.opening(index):
                yield chunk(choice)
        async with aclosing(answers.events()) as incoming:
            async for index, news in incoming:
                if isinstance(news, Delta):
                    choices = form.piece(index, news)
                else:
                    finished.append(news)
                    choices = form.ending(index, news.reason)
                for choice in choices:
                    yield chunk(choice)
        if body.include_usage:
            yield event(
                {**head, "choices": [], "usage": usage_of(finished, body.n, form.reasoning_tokens)}
            )
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield event(error.content())
    except Exception as error:
        yield event(internal(error).content())


def usage_of(finished: Iterable[Finished], n: int, reasoning: int) -> dict[str, Any]:
    """Token counts. The n answers to a prompt share it, so it counts once, as OpenAI does."""
    ends = list(finished)
    prompt = sum(end.prompt_tokens for end in ends) // n
    completion = sum(end.completion_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in ends) // n},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
