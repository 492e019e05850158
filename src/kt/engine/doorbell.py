"""Wakes the event loops of consumers: once a step, whatever the number of answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final


class Doorbell:
    """For the engine's thread. Waking a loop costs two system calls and a turn of the loop, as much
    as the rest of a token's way to it.
    """

    def __init__(self) -> None:
        self._due: Final[dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]] = {}

    def note(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        """`waiter`, of `loop`, is to be set when the bell rings."""
        self._due.setdefault(loop, []).append(waiter)

    def ring(self) -> None:
        """Sets all that were noted."""
        while self._due:
            loop, waiters = self._due.popitem()
            # It refuses when the loop has closed: then nobody is left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_set, waiters)


def _set(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():  # its task was not cancelled
            waiter.set_result(None)
