"""What the engine has done and how fast it does it now."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kt.units import Choice

WINDOW_SECONDS = 10


@dataclass(frozen=True)
class Stats:
    """A snapshot. Counts run from the start; rates are tokens per second over the last ten seconds.

    pages_free counts every page that can be taken, pages_cached those that a prefix can be found
    in, free or in use. prompt_tokens includes cached_tokens, the ones that were found. Of
    draft_tokens, the guesses of prompt lookup that were checked, draft_accepted were right.
    prefill_chunk: prompt tokens a step while answers are running. loaded: False while the model
    is out of memory because nobody asked for long.
    """

    running: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_cached: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    preemptions: int
    failures: int
    draft_tokens: int
    draft_accepted: int
    prefill_chunk: Choice[int]
    prefill_rate: float
    decode_rate: float
    loaded: bool


class Meter:
    """Tokens per second over a sliding window, counted in whole seconds of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._seconds: deque[list[int]] = deque(
            maxlen=WINDOW_SECONDS + 1
        )  # [second, prefill, decode]

    def add(self, prefill: int, decode: int) -> None:
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        self._seconds[-1][1] += prefill
        self._seconds[-1][2] += decode

    def rates(self) -> tuple[float, float]:
        """Prefill and decode; any thread."""
        now = self._clock()
        recent = [entry for entry in list(self._seconds) if entry[0] > now - WINDOW_SECONDS]
        span = max(1.0, min(float(WINDOW_SECONDS), now - self._started))
        return sum(e[1] for e in recent) / span, sum(e[2] for e in recent) / span


class Counters:
    """What the engine's thread counts; other threads may read."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.requests = self.failures = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.draft_tokens = self.draft_accepted = 0
