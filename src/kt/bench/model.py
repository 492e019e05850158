"""`kt bench MODEL`: prefill and decode on the executor, beside the machine's floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kt.bench.cut import kept
from kt.bench.floors import LEAST_BUFFER, Meter, ReadBuffer, beyond_caches
from kt.bench.formats import PEAKS
from kt.bench.passes import Passes
from kt.bench.point import Point
from kt.bench.timing import Timing, timed
from kt.bench.work import ModelWork, Span, Step, combined
from kt.engine.cpu_executor import CpuExecutor
from kt.engine.launch import Prepared, prepare
from kt.errors import DoesNotFit, UsageError
from kt.kernels import library
from kt.placement.budget import KvFormat, pages_for
from kt.placement.plan import LEAST_ASKED, Plan, plan
from kt.units import Choice

if TYPE_CHECKING:
    from kt.kernels.variants import Variant
    from kt.machine.facts import Machine

SCHEMA: Final = 1
PREFILL: Final = (128, 512)
CONTEXT: Final = (128, 1024)
BATCH: Final = (1, 4)


@dataclass(frozen=True)
class Wanted:
    """What to measure. prefill: prompt lengths. context: positions before the first decoded token.
    batch: sequences decoded at once. decode: tokens of each sequence in a repetition; 0: no decode.
    None: the usual ones, as far as the model's context and the memory allow."""

    prefill: tuple[int, ...] | None = None
    context: tuple[int, ...] | None = None
    batch: tuple[int, ...] | None = None
    decode: int = 16
    repeat: int = 3

    def within(self, context: int) -> Wanted:
        """All values, for a model of `context` positions. Raises UsageError for one above."""
        prefill = self.prefill or tuple(n for n in PREFILL if n <= context)
        if self.decode >= context:
            raise UsageError(f"--decode {self.decode}: this model has {context} positions")
        usual = tuple(n for n in CONTEXT if n + self.decode <= context) or (context - self.decode,)
        contexts = (self.context or usual) if self.decode else ()
        for name, values, more in (
            ("--prefill", prefill, 0),
            ("--context", contexts, self.decode),
        ):
            for value in values:
                if value + more > context:
                    with_decode = f" and {more} decoded tokens" if more else ""
                    raise UsageError(
                        f"{name} {value}{with_decode}: this model has {context} positions"
                    )
        return replace(self, prefill=prefill, context=contexts, batch=self.batch or BATCH)


@dataclass(frozen=True)
class ModelPoint:
    """One measurement. tokens: computed in a repetition. context: positions before them, of each of
    the `batch` sequences. work: of a repetition."""

    tokens: int
    context: int
    batch: int
    work: Step
    point: Point

    @property
    def rate(self) -> float:
        """Tokens per second, by the median."""
        return self.tokens / self.point.timing.median

    @property
    def best_rate(self) -> float:
        """Tokens per second of the best repetition."""
        return self.tokens / self.point.timing.best

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        parts = self.work.parts.items()
        return {
            "tokens": self.tokens,
            "context": self.context,
            "batch": self.batch,
            "tokens_per_second": {"best": self.best_rate, "median": self.rate},
            "bytes_per_token": self.point.nbytes / self.tokens,
            "operations_per_token": self.point.all_operations / self.tokens,
            "bytes_by_part": {name: part.nbytes for name, part in parts},
            **self.point.to_json(),
        }


@dataclass(frozen=True)
class Report:
    """All points, and the plan that they were measured under."""

    plan: Plan
    cpu: str
    read_bytes: int
    prefill: list[ModelPoint] = field(default_factory=list)
    decode: list[ModelPoint] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """docs/bench.md names the fields."""
        workers = self.plan.worker_cpus
        return {
            "schema": SCHEMA,
            "bench": "model",
            "model": self.plan.model,
            "cpu": self.cpu,
            "variant": self.plan.variant._asdict(),
            "threads": {"value": len(workers.value), "reason": workers.reason},
            "kv_format": self.plan.kv_format._asdict(),
            "read_buffer_bytes": self.read_bytes,
            "prefill": [point.to_json() for point in self.prefill],
            "decode": [point.to_json() for point in self.decode],
        }


def ready(
    path: Path,
    machine: Machine,
    wanted: Wanted,
    *,
    name: str,
    variant: Choice[Variant],
    threads: int | None = None,
    kv_format: KvFormat | None = None,
) -> tuple[Prepared, Wanted]:
    """The model opened and planned for what is wanted, and all that is wanted. Takes no memory.

    Raises what kt.engine.launch.prepare raises, UsageError for lengths above the model's,
    DoesNotFit for more sequences than the KV cache has room for.
    """
    prepared = prepare(
        path, machine, name=name, variant=variant, threads=threads, kv_format=kv_format
    )
    try:
        full = wanted.within(prepared.spec.context)
        batch = max(full.batch or ())
        longest = max([*(full.prefill or ()), *((c + full.decode) for c in full.context or ()), 1])
        longest = max(longest, min(LEAST_ASKED, prepared.spec.context))
        decided = plan(
            prepared.spec,
            prepared.checkpoint,
            machine,
            model=name,
            variant=prepared.plan.variant,
            context=longest,
            max_batch=batch,
            threads=threads,
            kv_format=kv_format,
        )
        decoded = max((pages_for(c + full.decode) for c in full.context or ()), default=0)
        if decoded > decided.n_pages.value // batch:
            raise DoesNotFit(
                f"{batch} sequences of {longest} positions need {decoded * batch} KV pages, and "
                f"there is memory for {decided.n_pages.value}",
                hint="A smaller --batch or --context needs less.",
            )
    except BaseException:
        prepared.checkpoint.close()
        raise
    return replace(prepared, plan=decided), full


def load(prepared: Prepared, progress: Callable[[int, int], None] | None = None) -> CpuExecutor:
    """The executor, as `kt run` builds it. progress(done, total): bytes of weights packed."""
    decided = prepared.plan
    return CpuExecutor(
        replace(prepared.spec, context=decided.context.value),
        prepared.checkpoint,
        library.load(decided.variant.value),
        cpus=decided.worker_cpus.value,
        n_pages=decided.n_pages.value,
        kv_format=decided.kv_format.value,
        max_batch_tokens=decided.max_batch_tokens,
        max_logits=decided.max_logits,
        progress=progress,
        read=decided.loading.value == "read",
    )


def bench(
    prepared: Prepared,
    executor: CpuExecutor,
    wanted: Wanted,
    *,
    cpu: str,
    say: Callable[[str], None],
) -> Report:
    """Measures what `ready` returned as wanted. say: progress, a line at a time."""
    decided = prepared.plan
    cpus = decided.worker_cpus.value
    native = library.load(decided.variant.value)
    buffer = ReadBuffer(native, _buffer_bytes(decided, cpus))
    chunk = decided.max_batch_tokens - decided.max_batch.value
    bench = _Bench(
        Passes(executor, chunk, decided.max_batch.value),
        ModelWork(prepared.spec, prepared.checkpoint, decided.kv_format.value),
        Meter(native, native.new_pool(cpus), buffer, PEAKS),
        wanted.repeat,
    )
    report = Report(decided, cpu, buffer.nbytes)
    with kept(report, report.prefill, report.decode):
        for length in wanted.prefill or ():
            say(f"prefill of {length} tokens")
            report.prefill.append(bench.prefill(length))
        if wanted.context:
            bench.fill(wanted, say)
        for context in wanted.context or ():
            for batch in wanted.batch or ():
                say(f"decode after {context} positions, {batch} at once")
                report.decode.append(bench.decode(context, batch, wanted.decode))
    return report


class _Bench:
    def __init__(self, passes: Passes, work: ModelWork, meter: Meter, repeat: int) -> None:
        self._passes, self._work, self._meter = passes, work, meter
        self._repeat = repeat

    def prefill(self, length: int) -> ModelPoint:
        """A prompt of `length` tokens into an empty sequence, with the last one's logits."""
        chunks = self._passes.chunks(length)
        steps = [
            self._work.step([Span(first, count)], int(first + count == length))
            for first, count in chunks
        ]
        return self._point(self._passes.prefill(length), length, 0, 1, combined(steps))

    def fill(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        """Computes what the KV pages of the longest context hold: untouched memory would be read
        from a cache."""
        longest, batch = max(wanted.context or ()), max(wanted.batch or ())
        say(f"filling the KV pages of {batch} x {longest} positions")
        for sequence in range(batch):
            self._passes.prefill(longest, sequence)()

    def decode(self, context: int, batch: int, count: int) -> ModelPoint:
        """`count` tokens, one after the other, for each of `batch` sequences."""
        steps = [self._work.step([Span(context + i, 1)] * batch, batch) for i in range(count)]
        run = self._passes.decode(context, batch, count)
        return self._point(run, batch * count, context, batch, combined(steps))

    def _point(
        self, run: Callable[[], None], tokens: int, context: int, batch: int, work: Step
    ) -> ModelPoint:
        run()  # warm-up
        seconds, floors = self._meter.around(lambda: [timed(run) for _ in range(self._repeat)])
        total = work.total
        point = Point(Timing(tuple(seconds)), total.nbytes, total.operations, floors)
        return ModelPoint(tokens, context, batch, work, point)


def _buffer_bytes(decided: Plan, cpus: Sequence[int]) -> int:
    """Far more than the caches, but at most half of what the model leaves."""
    left = max(decided.usable.value - decided.needed, 2 << 20)
    return min(beyond_caches(cpus, LEAST_BUFFER), left // 2)
