"""`kt bench serve`: concurrent streams against a server, over HTTP as its clients have them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any, Final

import numpy as np

from kt.bench.completion_stream import BadAnswer, Requester, Stream
from kt.bench.cut import Cut
from kt.errors import UsageError

SCHEMA: Final = 1
TIMEOUT: Final = 600.0
"""Seconds that the server may keep a stream waiting."""

MOST_STREAMS: Final = 1024
"""Each is a thread and a connection here."""


@dataclass(frozen=True)
class Wanted:
    """streams: numbers of requests at once, the first is what the others are compared with.
    tokens: of every answer. repeat: rounds, each of which measures every number once. Raises
    UsageError.
    """

    streams: tuple[int, ...]
    tokens: int
    repeat: int

    def __post_init__(self) -> None:
        if max(self.streams) > MOST_STREAMS:
            raise UsageError(f"--streams {max(self.streams)}: at most {MOST_STREAMS} at once")


@dataclass(frozen=True)
class Round:
    """Streams that ran at once."""

    streams: tuple[Stream, ...]

    @property
    def rate(self) -> float:
        """Tokens per second of all streams together, from the first piece of text to the last; the
        streams' first tokens are left out.
        """
        begin = min(stream.arrivals[0] for stream in self.streams)
        end = max(stream.arrivals[-1] for stream in self.streams)
        later = sum(stream.tokens - 1 for stream in self.streams)
        return later / (end - begin) if end > begin else 0.0


@dataclass(frozen=True)
class Point:
    """All rounds of one number of streams."""

    streams: int
    rounds: tuple[Round, ...]

    @property
    def rate(self) -> float:
        """Tokens per second, the median of the rounds."""
        return median(round.rate for round in self.rounds)

    @property
    def best_rate(self) -> float:
        """Tokens per second of the best round."""
        return max(round.rate for round in self.rounds)

    def first(self, percentile: float) -> float:
        """Seconds to the first piece of text."""
        return _percentile([s.first for r in self.rounds for s in r.streams], percentile)

    def gap(self, percentile: float) -> float:
        """Seconds between two pieces of a stream."""
        gaps = (s.gaps for r in self.rounds for s in r.streams)
        return _percentile(list(chain.from_iterable(gaps)), percentile)

    def to_json(self, one: Point) -> dict[str, Any]:
        """docs/bench.md names the fields. one: what this point is compared with."""
        return {
            "streams": self.streams,
            "tokens_per_second": {"best": self.best_rate, "median": self.rate},
            "ratio": ratio(self, one),
            "first_seconds": {f"p{p}": self.first(p) for p in PERCENTILES},
            "gap_seconds": {f"p{p}": self.gap(p) for p in PERCENTILES},
        }


PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True)
class Report:
    """All points, in the order asked for."""

    url: str
    model: str
    wanted: Wanted
    points: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        return {
            "schema": SCHEMA,
            "bench": "serve",
            "model": self.model,
            "url": self.url,
            "tokens": self.wanted.tokens,
            "rounds": self.wanted.repeat,
            "points": [point.to_json(self.points[0]) for point in self.points],
        }


def ratio(point: Point, one: Point) -> float:
    """The rate of `point` over that of `one`: the median over rounds, whose two rates were measured
    one soon after the other. An interrupted last round may have only one of them.
    """
    pairs = zip(point.rounds, one.rounds, strict=False)
    return median(a.rate / b.rate if b.rate else 0.0 for a, b in pairs)


def bench(
    url: str,
    model: str,
    wanted: Wanted,
    *,
    api_key: str | None = None,
    say: Callable[[str], None],
) -> Report:
    """Measures the server at `url`. say: progress, a line at a time. Raises BadAnswer."""
    with ExitStack() as stack:
        requesters = [Requester(url, api_key, TIMEOUT) for _ in range(max(wanted.streams))]
        for requester in requesters:
            stack.enter_context(closing(requester))
        pool = stack.enter_context(ThreadPoolExecutor(len(requesters)))
        rounds: dict[int, list[Round]] = {number: [] for number in wanted.streams}
        try:
            _measure(pool, requesters, model, rounds, wanted, say)
        except (OSError, http.client.HTTPException) as error:
            name = type(error).__name__
            raise BadAnswer(f"{url} cannot be measured: {error or name}") from error
        except KeyboardInterrupt:
            if not any(rounds.values()):
                raise
            raise Cut(_report(url, model, wanted, rounds)) from None
    return _report(url, model, wanted, rounds)


def _report(url: str, model: str, wanted: Wanted, rounds: Mapping[int, Sequence[Round]]) -> Report:
    points = tuple(Point(n, tuple(taken)) for n, taken in rounds.items() if taken)
    return Report(url, model, wanted, points)


def _measure(
    pool: ThreadPoolExecutor,
    requesters: Sequence[Requester],
    model: str,
    rounds: Mapping[int, list[Round]],
    wanted: Wanted,
    say: Callable[[str], None],
) -> None:
    for turn in range(wanted.repeat + 1):
        say(f"round {turn} of {wanted.repeat}" if turn else "warming up")
        for number, taken in rounds.items():
            done = _together(pool, requesters[:number], model, wanted.tokens)
            if turn:
                taken.append(done)


def _together(
    pool: ThreadPoolExecutor, requesters: Sequence[Requester], model: str, tokens: int
) -> Round:
    """One greedy request each, sent at the same moment."""
    ready = threading.Barrier(len(requesters))

    def one(number: int, requester: Requester) -> Stream:
        fields = {
            "model": model,
            # Each its own from the first word on, so that no prefix cache helps.
            "prompt": f"{number} reasons to write every day:",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        ready.wait(TIMEOUT)
        return requester.stream(fields)

    for requester in requesters:
        requester.connect()
    try:
        return Round(tuple(pool.map(one, range(len(requesters)), requesters)))
    except BaseException:  # Nobody waits for the streams that are left.
        ready.abort()
        for requester in requesters:
            requester.abort()
        raise


def _percentile(values: list[float], percentile: float) -> float:
    return float(np.percentile(values, percentile)) if values else 0.0
