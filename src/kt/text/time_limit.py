"""A time limit for Python code that may never end, such as a loop in a chat template."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(BaseException):
    """The work took too long. Not an Exception, so that what runs out of time cannot catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeUp inside the block once `seconds` have passed.

    The interpreter delivers it between two bytecodes: one long call of C code ends first.
    """
    watch = _Watch(threading.get_ident())
    timer = threading.Timer(seconds, watch.strike)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        watch.end()


class _Watch:
    """Strikes a thread at most once, and never after the end."""

    def __init__(self, thread: int) -> None:
        self._thread = ctypes.c_ulong(thread)
        self._lock = threading.Lock()
        self._over = False

    def strike(self) -> None:
        with self._lock:
            if not self._over:
                self._over = True
                _set_exception(self._thread, ctypes.py_object(TimeUp))

    def end(self) -> None:
        with self._lock:
            if self._over:  # it may not have been delivered yet, and must not be later
                _set_exception(self._thread, None)
            self._over = True


_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
