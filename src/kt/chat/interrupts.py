"""Ctrl-C in a conversation: never lost, and felt only where it may be."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Interrupts:
    """Inside `with interrupts.noted():` SIGINT raises nothing but is remembered; inside
    `with interrupts.felt():` it raises KeyboardInterrupt, also if it came since `forget`. So what
    lies between the two, drawing on the screen say, always ends properly.
    """

    def __init__(self) -> None:
        self._came = False
        self._felt = False

    def forget(self) -> None:
        """Whatever came until now meant something that is over."""
        self._came = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        before = None
        with suppress(ValueError):  # not in the main thread, which gets the signals
            before = signal.signal(signal.SIGINT, self._arrived)
        try:
            yield
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)

    @contextmanager
    def felt(self) -> Iterator[None]:
        self._felt = True
        try:
            if self._came:
                raise KeyboardInterrupt
            yield
        finally:
            self._felt = False
        if self._came:  # it was raised where nothing can be, in a destructor say
            raise KeyboardInterrupt

    def _arrived(self, number: int, frame: object) -> None:
        self._came = True
        if self._felt:
            raise KeyboardInterrupt
