"""One answer as typed events (`event: NAME`), or as the object that they make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from kt.engine.request import Delta, Finished
from kt.server.answer_reader import AnswerReader
from kt.server.chat import Turn
from kt.server.errors import ApiError, internal, kind_of
from kt.server.generation import Answers, collect, while_connected
from kt.server.output import Piece
from kt.server.stream import EventStream, event


class TypedForm(Protocol):
    """How one endpoint words its answer; the lists are events, each with a "type"."""

    def begin(self) -> list[dict[str, Any]]: ...
    def add(self, piece: Piece) -> list[dict[str, Any]]: ...
    def end(self, finished: Finished, reasoning_tokens: int) -> list[dict[str, Any]]: ...
    def fail(self, message: str, code: str) -> list[dict[str, Any]]: ...
    def whole(self) -> dict[str, Any]: ...


async def respond(
    http: HttpRequest, stream: bool, answers: Answers, turn: Turn, form: TypedForm
) -> Response:
    """The response; the answer is cancelled if the client leaves."""
    if stream:
        return EventStream(_events(answers, turn, form), answers)
    try:
        (answer,) = await while_connected(http, collect(answers))
    finally:
        answers.cancel()
    assert answer.finished is not None
    reader = AnswerReader(turn)
    whole = Delta("".join(answer.text), answer.tokens)
    for piece in [*reader.push(whole), *reader.finish(answer.finished.reason)]:
        form.add(piece)
    form.end(answer.finished, reader.reasoning_tokens)
    return JSONResponse(form.whole())


async def _events(answers: Answers, turn: Turn, form: TypedForm) -> AsyncIterator[bytes]:
    reader = AnswerReader(turn)
    try:
        for sent in form.begin():
            yield event(sent, sent["type"])
        async with aclosing(answers.events()) as incoming:
            async for _, news in incoming:
                pieces = (
                    reader.push(news) if isinstance(news, Delta) else reader.finish(news.reason)
                )
                for piece in pieces:
                    for sent in form.add(piece):
                        yield event(sent, sent["type"])
                if isinstance(news, Finished):
                    for sent in form.end(news, reader.reasoning_tokens):
                        yield event(sent, sent["type"])
    except Exception as error:
        told = error if isinstance(error, ApiError) else internal(error)
        for sent in form.fail(told.message, told.code or kind_of(told.status_code)):
            yield event(sent, sent["type"])
