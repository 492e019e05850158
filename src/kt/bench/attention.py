"""`kt bench attention`: an attention layer beside the machine's floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import numpy as np

from kt.bench.attention_layer import F32, LAYERS, PERIOD, AttentionLayers, Heads
from kt.bench.cut import kept
from kt.bench.floors import LEAST_BUFFER, Meter, ReadBuffer, beyond_caches
from kt.bench.formats import attention_operations
from kt.bench.point import Point
from kt.bench.timing import Timing, timed
from kt.errors import DoesNotFit, UsageError
from kt.kernels.library import Library
from kt.placement.budget import PAGE_TOKENS, pages_for
from kt.units import Choice, format_bytes

SCHEMA: Final = 1
LONGEST: Final = 4
"""A point ends after so many times its seconds, however few repetitions that were."""
FEWEST: Final = 2


@dataclass(frozen=True)
class Wanted:
    """What to measure. context: positions that a decoded token sees, itself included, and that lie
    before a chunk. prefill: tokens of a chunk; 0: decode only. repeat: least repetitions of a
    point; seconds: least time for it. Raises UsageError for parts of pages: a page's first token
    clears what lay in it."""

    heads: Heads
    context: tuple[int, ...]
    prefill: int = 512
    repeat: int = 5
    seconds: float = 1.0

    def __post_init__(self) -> None:
        for option, values in (("context", self.context), ("prefill", (self.prefill,))):
            for value in values:
                if value % PAGE_TOKENS:
                    raise UsageError(f"--{option} {value}: not a multiple of {PAGE_TOKENS}")

    @property
    def positions(self) -> int:
        """Of the longest sequence."""
        return max(self.context) + self.prefill

    @property
    def input_bytes(self) -> int:
        """Of the table, its packed copy, the reference's copy in float64, and of the program's
        inputs and outputs: each about `width` numbers for a token."""
        return self.heads.width * (PERIOD * (4 + 4 + 8) + max(self.prefill, PERIOD) * (4 + 4))


@dataclass(frozen=True)
class AttentionPoint:
    """`tokens` tokens, the first at position `first`. point: one layer's attention; call: the whole
    forward pass, of LAYERS layers and the reading of inputs (`rest`). error: relative (root mean
    square), of the last token, to float64 arithmetic on unrounded queries, keys and values."""

    context: int
    first: int
    tokens: int
    point: Point
    call: Timing
    rest: Timing
    error: float

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        return {
            "context": self.context,
            "tokens": self.tokens,
            "relative_error": self.error,
            "call_seconds": self.call.to_json(),
            "rest_seconds": self.rest.to_json(),
            **self.point.to_json(),
        }


@dataclass(frozen=True)
class Report:
    """All points, and what they were measured with."""

    wanted: Wanted
    variant: Choice[str]
    threads: Choice[int]
    cpu: str
    pages: Choice[int]
    kv_bytes: int
    read_bytes: int
    decode: list[AttentionPoint] = field(default_factory=list)
    prefill: list[AttentionPoint] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        heads = self.wanted.heads
        return {
            "schema": SCHEMA,
            "bench": "attention",
            "cpu": self.cpu,
            "variant": self.variant._asdict(),
            "threads": self.threads._asdict(),
            "pass_layers": LAYERS,
            "heads": heads.n_heads,
            "kv_heads": heads.n_kv_heads,
            "head_dim": heads.head_dim,
            "kv_format": heads.kv_format,
            "kv_pages": self.pages._asdict(),
            "kv_bytes": self.kv_bytes,
            "read_buffer_bytes": self.read_bytes,
            "decode": [point.to_json() for point in self.decode],
            "prefill": [point.to_json() for point in self.prefill],
        }


def bench(
    wanted: Wanted,
    library: Library,
    cpus: Sequence[int],
    *,
    variant: Choice[str],
    threads: Choice[int],
    cpu: str,
    usable: int,
    say: Callable[[str], None],
) -> Report:
    """Measures. `usable`: bytes of memory that may be used; say: progress, a line at a time.

    Raises DoesNotFit for contexts whose keys and values exceed half of that.
    """
    enough = beyond_caches(cpus, LEAST_BUFFER)
    pages = choose_pages(wanted, library, enough, usable)
    pool = library.new_pool(cpus)
    say(f"filling {pages.value} KV pages")
    layers = AttentionLayers(library, pool, wanted.heads, pages.value, wanted.prefill)
    memory = ReadBuffer(library, min(enough, usable // 4))
    meter = Meter(library, pool, memory, list(attention_operations(wanted.heads.kv_format, 1)))
    report = Report(wanted, variant, threads, cpu, pages, layers.kv_bytes, memory.nbytes)
    with kept(report, report.decode, report.prefill):
        for points, tokens in ((report.decode, 1), (report.prefill, wanted.prefill)):
            for context in wanted.context if tokens else ():
                say(f"{'decode' if tokens == 1 else 'prefill'} at {context} positions")
                points.append(_point(wanted, layers, meter, context, tokens))
    return report


def choose_pages(wanted: Wanted, library: Library, enough: int, usable: int) -> Choice[int]:
    """How many KV pages to rotate over, so that they come from DRAM. Raises DoesNotFit."""
    inputs = wanted.input_bytes
    if inputs > usable // 4:
        raise DoesNotFit(
            f"queries, keys and values of {max(wanted.prefill, PERIOD)} tokens need {inputs} bytes "
            f"({format_bytes(inputs)}), and kt may use {usable} ({format_bytes(usable)})",
            hint="Fewer heads, a smaller --head-dim or --prefill need less.",
        )
    page = LAYERS * wanted.heads.page_bytes(library)  # of all layers
    least, room = pages_for(wanted.positions), usable // 2 // page
    if least > room:
        raise DoesNotFit(
            f"keys and values of {wanted.positions} positions are {least * page} bytes "
            f"({format_bytes(least * page)}), and kt may use {usable} ({format_bytes(usable)})",
            hint="A smaller --context needs less.",
        )
    pages = -(-enough // page)
    if max(pages, least) > room:
        return Choice(room, "what fits into half of the memory")
    return Choice(max(pages, least), f"{format_bytes(enough)} or more, so that they lie in DRAM")


def _point(
    wanted: Wanted, layers: AttentionLayers, meter: Meter, context: int, tokens: int
) -> AttentionPoint:
    first = context - 1 if tokens == 1 else context
    error = relative_error(layers, first, tokens)
    (calls, rests), floors = meter.around(lambda: _measure(wanted, layers, first, tokens))
    call, rest = Timing(tuple(calls)), Timing(tuple(rests))
    heads = wanted.heads
    nbytes = layers.kv_bytes / (LAYERS * layers.pages * PAGE_TOKENS) * (first + tokens)
    pairs = tokens * first + tokens * (tokens + 1) // 2  # every query with every key it sees
    operations = attention_operations(heads.kv_format, pairs * heads.n_heads * heads.head_dim)
    point = Point(call.less(rest).each(LAYERS), nbytes, operations, floors)
    return AttentionPoint(context, first, tokens, point, call, rest, error)


def _measure(
    wanted: Wanted, layers: AttentionLayers, first: int, tokens: int
) -> tuple[list[float], list[float]]:
    """Seconds of whole calls, and of calls that stop before attention."""
    calls: list[float] = []
    rests: list[float] = []
    # Whole periods of the KV memory: what a pass writes is what lay there.
    each = pages_for(-(-(first + tokens) // PERIOD) * PERIOD)
    for turn in count():
        page = turn % max(layers.pages // each, 1) * each
        call = layers.call(first, tokens, page=page)
        rest = layers.call(first, tokens, page=page, attend=False)
        rest()  # wakes the workers, which is part of neither
        rest_seconds, seconds = timed(rest), timed(call)
        rests.append(rest_seconds)
        calls.append(seconds)
        spent = sum(calls[1:])
        if len(calls) > wanted.repeat and spent >= wanted.seconds:
            break
        if len(calls) > FEWEST and spent >= LONGEST * max(wanted.seconds, 1e-3):
            break
    return calls[1:], rests[1:]  # the first one warms up


def relative_error(layers: AttentionLayers, first: int, tokens: int) -> float:
    """Of the last token of a pass, against float64 arithmetic in numpy."""
    layers.call(first, tokens)()
    got = layers.attended(tokens)[-1]
    wanted = reference(layers.heads, layers.table, first + tokens)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def reference(heads: Heads, table: F32, positions: int) -> Any:
    """What the last of `positions` tokens attends to, float64 [heads * head_dim]. A row of the
    table that came n times weighs n times as much as one that came once."""
    n, kv, dim = heads.n_heads, heads.n_kv_heads, heads.head_dim
    rows = table.astype(np.float64).reshape(len(table), n + 2 * kv, dim)
    query = rows[(positions - 1) % PERIOD, :n].reshape(kv, n // kv, dim)
    keys, values = rows[:, n : n + kv], rows[:, n + kv :]
    times = np.bincount(np.arange(positions) % PERIOD, minlength=PERIOD)
    scores = np.einsum("ghd,kgd->ghk", query, keys) * dim**-0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * times
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("ghk,kgd->ghd", weights, values).reshape(-1)
