"""Threads for work that may take long: rendering and tokenising, compiling grammars.

Unlike asyncio's own they are few, so that a flood of long prompts takes bounded memory and leaves
the cores to the engine, and a process that ends does not wait for them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

COUNT = 3


class Workers:
    """At most `count` threads, started when they are needed."""

    def __init__(self, count: int = COUNT) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = threading.Semaphore(0)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread; what nobody waits for any more is not begun."""
        job = _Job(work, asyncio.get_running_loop())
        self._jobs.put(job)
        if not self._idle.acquire(blocking=False):
            self._start_one()
        result: T = await job.future
        return result

    def _start_one(self) -> None:
        with self._lock:
            if self._started == self._count:
                return
            self._started += 1
        threading.Thread(target=self._serve, name="kt text", daemon=True).start()

    def _serve(self) -> None:
        self._jobs.get().do()
        while True:
            self._idle.release()
            self._jobs.get().do()


class _Job:
    """Work, and the future that takes its result in the event loop that asked for it."""

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def do(self) -> None:
        if self.future.cancelled():
            return
        result, error = None, None
        try:
            result = self._work()
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._tell, result, error)

    def _tell(self, result: Any, error: BaseException | None) -> None:
        if self.future.cancelled():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


WORKERS = Workers()
COMPILER = Workers(1)
"""Grammars can take seconds each, and nothing else shall wait for them."""
