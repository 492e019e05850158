"""What other threads ask of the engine's thread: requests, cancellations, an end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kt.engine.handle import Handle
from kt.engine.request import EngineClosed
from kt.engine.sequence import Sequence

T = TypeVar("T")

CLOSING = "the engine is shutting down"


class News(NamedTuple):
    """In order of arrival. idle: nothing has come for as long as was to be waited."""

    submitted: list[Sequence]
    cancelled: list[Handle]
    idle: bool


class Inbox:
    """Any thread puts in, the engine's takes out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._submitted: deque[Sequence] = deque()
        self._cancelled: deque[Handle] = deque()
        self._closing = False
        self._aborted = False

    def __len__(self) -> int:
        """Requests that were not taken out yet."""
        return len(self._submitted)

    def check_open(self) -> None:
        """Raises EngineClosed after `close`."""
        if self._closing:
            raise EngineClosed(CLOSING)

    def submit(self, sequence: Sequence, check: Callable[[], None]) -> None:
        """Adds a request unless `check` raises; no other one gets in between."""
        with self._changed:
            check()
            self._submitted.append(sequence)
            self._changed.notify()

    def cancel(self, handle: Handle) -> None:
        with self._changed:
            self._cancelled.append(handle)
            self._changed.notify()

    def also(self, work: Callable[[], T]) -> T:
        """Does `work`, which gives the engine's thread something else to do, and wakes it. Raises
        EngineClosed.
        """
        with self._changed:
            self.check_open()
            result = work()
            self._changed.notify()
        return result

    def close(self) -> None:
        """Lets nothing more in; the thread may end once it has nothing to do."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def abort(self) -> None:
        """Asks the thread to end now. It looks between its steps."""
        with self._changed:
            self._aborted = True

    def take(self, busy: Callable[[], bool], patience: float | None) -> News | None:
        """All that has come; None when the thread should end.

        busy: whether the thread has something to do; if not, this waits for it or for news, at most
        `patience` seconds (None: any time).
        """
        with self._changed:
            while not self._any() and not busy():
                if self._closing:
                    return None
                if not self._changed.wait(patience):
                    break
            if self._aborted:
                return None
            idle = not self._any() and not busy()
            return News(self.drain(), _emptied(self._cancelled), idle)

    def drain(self) -> list[Sequence]:
        """The requests that were not taken out yet."""
        return _emptied(self._submitted)

    def _any(self) -> bool:
        return bool(self._submitted or self._cancelled)


def _emptied(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]
