"""From HTTP requests to the engine: submits, joins events, cancels what nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fastapi import Request as HttpRequest

from kt.engine.engine import Engine
from kt.engine.handle import Handle
from kt.engine.request import (
    Delta,
    Event,
    Finished,
    Grammar,
    InvalidRequest,
    Request,
    Sampling,
    TokenInfo,
)
from kt.errors import KtError
from kt.server.errors import ApiError, from_kt
from kt.server.metrics import Metrics
from kt.server.sampling_defaults import SamplingDefaults
from kt.server.schemas import Generation
from kt.server.workers import COMPILER, WORKERS, Workers

T = TypeVar("T")

CLIENT_LEFT = 499  # what nginx logs for it; nobody receives this status


async def in_thread(param: str | None, work: Callable[[], T], *, workers: Workers = WORKERS) -> T:
    """Tokenisation or rendering off the event loop; what it refuses is a 400 that names `param`."""
    try:
        return await workers.run(work)
    except KtError as error:
        raise from_kt(error, param=param) from error


class Answers:
    """The answers to one HTTP request. Their handles are cancelled by `cancel`, which may come at
    any time.
    """

    def __init__(
        self, handles: list[Handle], forget: Callable[[Answers], None], metrics: Metrics
    ) -> None:
        self.handles = handles
        self._watches = [metrics.watch() for _ in handles]
        self.stopped = ""  # why the server itself stopped them
        self._forget = forget

    def cancel(self) -> None:
        for handle, watch in zip(self.handles, self._watches, strict=True):
            handle.cancel()
            watch.left()
        self._forget(self)

    async def events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """(answer's index, event) in order of arrival. Raises ApiError if an answer fails."""
        source = self._one() if len(self.handles) == 1 else self._many()
        async with aclosing(source):
            async for index, event in source:
                if isinstance(event, Finished):
                    self._watches[index].ended(event)
                    self._raise_if_failed(event)
                else:
                    self._watches[index].heard(event)
                yield index, event

    async def _one(self) -> AsyncGenerator[tuple[int, Event], None]:
        async for event in self.handles[0]:
            yield 0, event

    async def _many(self) -> AsyncGenerator[tuple[int, Event], None]:
        queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

        async def pump(index: int, handle: Handle) -> None:
            async for event in handle:
                queue.put_nowait((index, event))

        tasks = [asyncio.create_task(pump(i, handle)) for i, handle in enumerate(self.handles)]
        try:
            running = len(tasks)
            while running:
                index, event = await queue.get()
                running -= isinstance(event, Finished)
                yield index, event
        finally:
            for task in tasks:
                task.cancel()

    def _raise_if_failed(self, finished: Finished) -> None:
        if finished.blamed is not None:
            raise from_kt(finished.blamed)
        if finished.reason == "error":
            raise ApiError(500, finished.message or "the engine failed on this request")
        if finished.reason == "timeout":
            raise ApiError(504, finished.message or "the answer took too long", code="timeout")
        if finished.reason == "cancelled":
            raise ApiError(503, self.stopped or finished.message or "the request was cancelled")


@dataclass(frozen=True)
class Task:
    """Prompts, and what the engine's Request says about the answers to them. param: the field of
    the HTTP request that the prompts are from.
    """

    prompts: list[list[int]]
    grammar: Grammar | None = None
    grammar_after: str | None = None
    shown: tuple[str, ...] = ()
    param: str = "prompt"


@dataclass
class Answer:
    """One whole answer as it grows."""

    text: list[str] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    prompt: list[TokenInfo] = field(default_factory=list)
    finished: Finished | None = None


async def collect(answers: Answers) -> list[Answer]:
    """Every answer, complete, in order of index. Raises ApiError."""
    whole = [Answer() for _ in answers.handles]
    async with aclosing(answers.events()) as events:
        async for index, event in events:
            if isinstance(event, Delta):
                whole[index].text.append(event.text)
                whole[index].tokens.extend(event.tokens)
                whole[index].prompt.extend(event.prompt)
            else:
                whole[index].finished = event
    return whole


async def while_connected(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_departure(http))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_LEFT, "the client left")
        return task.result()
    finally:
        for unfinished in (task, watcher):
            if not unfinished.cancel():
                continue  # it has ended, and waiting again would lose where it failed
            with suppress(asyncio.CancelledError, Exception):
                await unfinished


async def _departure(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


class Generations:
    """Every request that is being answered, so that a shutdown can tell their clients."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        *,
        defaults: SamplingDefaults | None = None,
        timeout: float | None = None,
    ) -> None:
        """timeout: seconds that an answer may take in all. defaults: for what a request leaves
        open.
        """
        self._engine = engine
        self._metrics = metrics
        self._defaults = defaults or SamplingDefaults()
        self._timeout = timeout
        self._live: set[Answers] = set()
        self._closed = ""

    async def submit(self, task: Task, body: Generation, request_id: str) -> Answers:
        """body.n answers to each prompt, ordered by prompt. Raises ApiError; then nothing stays
        behind.
        """
        if self._closed:
            raise ApiError(503, self._closed)
        grammar = task.grammar
        if grammar is not None and not self._engine.knows(grammar):
            await in_thread(None, lambda: self._engine.prepare(grammar), workers=COMPILER)
        handles: list[Handle] = []
        try:
            for prompt in task.prompts:
                for choice in range(body.n):
                    request = self._request(task, prompt, body.sampling(choice, self._defaults))
                    handles.append(self._engine.submit(replace(request, id=request_id)))
        except KtError as error:
            for handle in handles:
                handle.cancel()
            param = error.param if isinstance(error, InvalidRequest) else ""
            raise from_kt(
                error, param=task.param if param == "prompt" else param or None
            ) from error
        answers = Answers(handles, self._live.discard, self._metrics)
        self._live.add(answers)
        return answers

    def _request(self, task: Task, prompt: list[int], sampling: Sampling) -> Request:
        return Request(
            prompt,
            sampling,
            grammar=task.grammar,
            grammar_after=task.grammar_after,
            timeout=self._timeout,
            shown=task.shown,
        )

    def close(self, message: str) -> None:
        """Takes no more requests; `message` will be the error of those that are stopped."""
        self._closed = message
        self._engine.stop_compiling()

    @property
    def running(self) -> int:
        """Answers that have not ended."""
        return sum(len(answers.handles) for answers in self._live)

    def stop(self) -> None:
        """Ends what still runs; the clients are told why."""
        for answers in list(self._live):
            answers.stopped = self._closed
            answers.cancel()
