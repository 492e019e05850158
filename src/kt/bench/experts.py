"""`kt bench experts`: one MoE layer beside the machine's floors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kt.bench.cut import kept
from kt.bench.expert_layer import EPS, F32, I32, Layers, Tokens
from kt.bench.expert_weights import BASE_EXPERTS, ExpertWeights, Sizes
from kt.bench.floors import LEAST_BUFFER, Meter, ReadBuffer, beyond_caches
from kt.bench.formats import Format
from kt.bench.point import Point
from kt.bench.timing import Timing, timed
from kt.errors import DoesNotFit
from kt.kernels.library import Library
from kt.units import GIB, MIB, Choice, format_bytes

SCHEMA: Final = 1
CHECKED_TOKENS: Final = 3
MOST_LAYERS: Final = 64
LONGEST: Final = 4
"""A point ends after so many times its seconds, however few repetitions that were."""
FEWEST: Final = 2


@dataclass(frozen=True)
class Wanted:
    """What to measure. tokens: batch sizes. layers: None takes enough for weights to come from
    DRAM. repeat: least repetitions of a point; seconds: least time for it."""

    sizes: Sizes
    format: Format
    tokens: tuple[int, ...]
    layers: int | None = None
    repeat: int = 5
    seconds: float = 1.0


@dataclass(frozen=True)
class ExpertPoint:
    """One batch size. point: the experts alone. call: the whole forward pass, in which inputs and
    routing (`rest`) are included. active: experts used by a call, on average. error: relative (root
    mean square) to float32 arithmetic on the same weights and inputs."""

    tokens: int
    point: Point
    call: Timing
    rest: Timing
    active: float
    error: float

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        seconds, point = self.point.timing.median, self.point
        return {
            "tokens": self.tokens,
            "milliseconds": {
                "best": point.timing.best * 1e3,
                "median": seconds * 1e3,
                "call_median": self.call.median * 1e3,
                "rest_median": self.rest.median * 1e3,
            },
            "active_experts": self.active,
            "bytes_per_second": point.nbytes / seconds if seconds else None,
            "operations_per_second": point.all_operations / seconds if seconds else None,
            "relative_error": self.error,
            **point.to_json(),
        }


@dataclass(frozen=True)
class Report:
    """All points, and what they were measured with."""

    wanted: Wanted
    variant: Choice[str]
    threads: Choice[int]
    cpu: str
    layers: Choice[int]
    weight_bytes: int
    read_from: str
    points: list[ExpertPoint] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        sizes = self.wanted.sizes
        return {
            "schema": SCHEMA,
            "bench": "experts",
            "cpu": self.cpu,
            "variant": self.variant._asdict(),
            "threads": self.threads._asdict(),
            "hidden": sizes.hidden,
            "intermediate": sizes.intermediate,
            "experts": sizes.experts,
            "top_k": sizes.top_k,
            "format": self.wanted.format.name,
            "layers": self.layers._asdict(),
            "expert_bytes": sizes.expert_bytes(self.wanted.format),
            "weight_bytes": self.weight_bytes,
            "read_from": self.read_from,
            "points": [point.to_json() for point in self.points],
        }


def choose_layers(wanted: Wanted, cpus: Sequence[int], usable: int) -> Choice[int]:
    """How many layers to rotate over. Raises DoesNotFit when not even those fit into `usable`
    bytes."""
    layer = wanted.sizes.experts * wanted.sizes.expert_bytes(wanted.format)
    if wanted.layers is not None:
        chosen = Choice(wanted.layers, "asked for")
    else:
        enough = beyond_caches(cpus, GIB)
        chosen = Choice(
            -(-enough // layer), f"more than {format_bytes(enough)}, so that weights come from DRAM"
        )
        if chosen.value > MOST_LAYERS:
            chosen = Choice(MOST_LAYERS, "the most that are made")
        if chosen.value * layer > usable // 2:
            chosen = Choice(max(1, usable // 2 // layer), "what fits into half of the memory")
    needed = chosen.value * (layer + working_bytes(wanted))
    if needed > usable:
        raise DoesNotFit(
            f"{chosen.value} layers of {wanted.sizes.experts} experts need {needed} bytes "
            f"({format_bytes(needed)}), and kt may use {usable} ({format_bytes(usable)})",
            hint="Fewer --layers, --experts or --tokens need less.",
        )
    return chosen


def working_bytes(wanted: Wanted) -> int:
    """About what the step program of one layer holds: rows in and out, and what every chosen expert
    makes of its tokens, in up to float32."""
    sizes = wanted.sizes
    chosen = sizes.top_k * (sizes.intermediate + sizes.hidden)
    return max(wanted.tokens) * 4 * (4 * sizes.hidden + sizes.experts + chosen)


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
    """Measures. `usable`: bytes of memory that may be used; say: progress, a line at a time."""
    layers = choose_layers(wanted, cpus, usable)
    pool = library.new_pool(cpus)
    say(f"making {layers.value} x {wanted.sizes.experts} random {wanted.format.name} experts")
    weights = ExpertWeights(library, pool, wanted.sizes, wanted.format, layers.value)
    tokens = Tokens(
        wanted.sizes.hidden, wanted.sizes.experts, wanted.sizes.top_k, batch=max(wanted.tokens)
    )
    compiled = Layers(library, pool, weights, tokens, max(wanted.tokens))
    meter, read_from = _meter(library, pool, weights, cpus, usable)
    report = Report(wanted, variant, threads, cpu, layers, weights.nbytes, read_from)
    with kept(report, report.points):
        for count in wanted.tokens:
            say(f"{count} {'token' if count == 1 else 'tokens'}")
            report.points.append(_point(wanted, compiled, weights, tokens, meter, count))
    return report


def _meter(
    library: Library, pool: Any, weights: ExpertWeights, cpus: Sequence[int], usable: int
) -> tuple[Meter, str]:
    """The floors, read from the weights themselves where those exceed the caches."""
    kinds = [weights.format.peak]
    enough = beyond_caches(cpus, LEAST_BUFFER)
    if weights.nbytes >= enough:
        return Meter(library, pool, weights, kinds), "the packed weights"
    size = min(enough, max(usable - weights.nbytes, 4 * MIB) // 2)
    where = f"{format_bytes(size)} of other memory: the weights may fit into the caches"
    return Meter(library, pool, ReadBuffer(library, size), kinds), where


def _point(
    wanted: Wanted,
    layers: Layers,
    weights: ExpertWeights,
    tokens: Tokens,
    meter: Meter,
    count: int,
) -> ExpertPoint:
    error = relative_error(layers, weights, tokens, count)
    (calls, rests, active), floors = meter.around(lambda: _measure(wanted, layers, tokens, count))
    call, rest = Timing(tuple(calls)), Timing(tuple(rests))
    nbytes = float(np.mean(active)) * wanted.sizes.expert_bytes(wanted.format)
    operations = float(count * wanted.sizes.top_k * wanted.sizes.operations)
    point = Point(call.less(rest), nbytes, {wanted.format.peak: operations}, floors)
    return ExpertPoint(count, point, call, rest, float(np.mean(active)), error)


def _measure(
    wanted: Wanted, layers: Layers, tokens: Tokens, count: int
) -> tuple[list[float], list[float], list[int]]:
    """Seconds of whole calls and of calls without the experts, and how many experts each used."""
    calls: list[float] = []
    rests: list[float] = []
    active: list[int] = []
    for layer, ids in _rotation(layers, tokens, count):
        rest, call = (layers.call(layer, ids, experts=experts) for experts in (False, True))
        rest()  # wakes the workers, which is part of neither
        rest_seconds, seconds = timed(rest), timed(call)
        if layer < 0:
            continue
        rests.append(rest_seconds)
        calls.append(seconds)
        active.append(tokens.active(ids))
        spent = sum(calls)
        if len(calls) >= wanted.repeat and spent >= wanted.seconds:
            break
        if len(calls) >= FEWEST and spent >= LONGEST * max(wanted.seconds, 1e-3):
            break
    return calls, rests, active


def _rotation(layers: Layers, tokens: Tokens, count: int) -> Iterator[tuple[int, I32]]:
    """(layer, tokens) without end. The first ones, with negative layers, are the warm-up: a layer's
    first pass over so many tokens also gets the memory that it works in."""
    for layer in range(-len(layers), 0):
        yield layer, tokens.ids(count, 0)
    call = 1
    while True:
        yield call % len(layers), tokens.ids(count, call)
        call += 1


def relative_error(layers: Layers, weights: ExpertWeights, tokens: Tokens, count: int) -> float:
    """Of the first few tokens of a batch, against float32 arithmetic in numpy on the same packed
    weights."""
    ids = tokens.ids(count, 0)
    rows = min(count, CHECKED_TOKENS)
    layers.call(0, ids)()
    after = layers.hidden(0, rows)
    got = after - tokens.hidden[ids[:rows]]
    wanted = reference(weights, tokens, ids[:rows])
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def reference(weights: ExpertWeights, tokens: Tokens, ids: I32) -> F32:
    """What the experts add to the hidden states, float32 [tokens, hidden]."""
    x = tokens.hidden[ids]
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS)
    chosen = tokens.chosen(ids)
    logits = np.take_along_axis(tokens.logits[ids], chosen, axis=1)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    out: F32 = np.zeros_like(x)
    # Experts with the same base have the same weights, so each base is unpacked once.
    for base in range(min(BASE_EXPERTS, weights.sizes.experts)):
        weight = np.where(chosen % BASE_EXPERTS == base, share, 0).sum(axis=1, keepdims=True)
        gate, up = x @ weights.unpack(base, "gate").T, x @ weights.unpack(base, "up").T
        out += weight * ((gate / (1 + np.exp(-gate)) * up) @ weights.unpack(base, "down").T)
    return out
