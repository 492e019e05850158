"""The client's end of a request: events come out of it, a cancellation goes in."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from kt.engine.doorbell import Doorbell
from kt.engine.request import Delta, Event, Finished, Result, TokenInfo


class Handle:
    """Iterate it, from a thread or from asyncio, by one consumer; the last event is a Finished.

    The engine's thread puts events in without ever waiting for the consumer. A consumer in asyncio
    sees them when the engine rings `bell`.
    """

    def __init__(self, cancel: Callable[[Handle], None], bell: Doorbell) -> None:
        self._cancel = cancel
        self._bell = bell
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False

    def cancel(self) -> None:
        """Asks the engine to stop and free the request's place; a Finished("cancelled") follows.

        Any thread, any number of times; nothing happens when the request has ended already.
        """
        self._cancel(self)

    def put(self, event: Event) -> None:
        """For the engine: hands an event to the consumer."""
        with self._arrived:
            self._events.append(event)
            waiter, self._waiter = self._waiter, None
            self._arrived.notify()
        if waiter is not None:
            self._bell.note(waiter.get_loop(), waiter)

    def result(self) -> Result:
        """Waits for the end and returns the whole answer."""
        tokens: list[TokenInfo] = []
        texts: list[str] = []
        prompt: list[TokenInfo] = []
        for event in self:
            if isinstance(event, Finished):
                return Result("".join(texts), tokens, event, prompt)
            texts.append(event.text)
            tokens.extend(event.tokens)
            prompt.extend(event.prompt)
        raise RuntimeError("the events of this handle were already consumed")

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._over:
            raise StopIteration
        with self._arrived:
            while not self._events:
                self._arrived.wait()
            return self._take()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        while True:
            with self._arrived:
                if self._events:
                    return self._take()
                self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter

    def _take(self) -> Event:
        event = self._events.popleft()
        self._over = not isinstance(event, Delta)
        return event
