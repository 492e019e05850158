"""From a path to a running engine: what `kt run`, `kt bench` and a chat without a server have in
common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from kt.engine.engine import Engine
from kt.engine.sleeper import Sleeper
from kt.errors import ModelError, NotFinite
from kt.kernels.variants import Variant, select
from kt.models import families
from kt.placement.budget import KvFormat
from kt.placement.plan import Plan, plan
from kt.units import Choice
from kt.weights.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from kt.engine.batch import Executor
    from kt.machine.facts import Machine
    from kt.models.spec import ModelSpec
    from kt.tokenizer import Tokenizer

CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Prepared:
    """A model that was opened, checked and planned; no memory is taken yet."""

    name: str
    checkpoint: Checkpoint
    spec: ModelSpec
    plan: Plan


class Running:
    """A started engine and what it stands on. Close it, or use it in a `with`."""

    def __init__(
        self, prepared: Prepared, tokenizer: Tokenizer, executor: Executor, engine: Engine
    ) -> None:
        self.plan = prepared.plan
        self.tokenizer = tokenizer
        self.engine = engine
        self._executor = executor
        self._checkpoint = prepared.checkpoint

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Lets running requests finish for `timeout` seconds, then frees threads and memory."""
        self.engine.close(timeout)
        self._executor.close()
        self._checkpoint.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(0.0 if error else CLOSE_SECONDS)


def prepare(
    path: Path,
    machine: Machine,
    *,
    name: str,
    variant: Choice[Variant] | str | None = None,
    context: int | None = None,
    max_batch: int | None = None,
    threads: int | None = None,
    kv_format: KvFormat | None = None,
    serving: bool = False,
) -> Prepared:
    """Opens and checks the files and plans. Arguments that are None are decided by the plan.
    serving: as in `plan`.

    Raises ModelError (files), MachineError (no variant), UsageError (values), DoesNotFit.
    """
    chosen = variant if isinstance(variant, Choice) else select(machine.cpu, variant)
    checkpoint = open_checkpoint(path)
    try:
        spec = families.spec(checkpoint)
        decided = plan(
            spec,
            checkpoint,
            machine,
            model=name,
            variant=Choice(chosen.value.name, chosen.reason),
            context=context,
            max_batch=max_batch,
            threads=threads,
            kv_format=kv_format,
            serving=serving,
        )
    except BaseException:
        checkpoint.close()
        raise
    return Prepared(name, checkpoint, spec, decided)


def launch(
    prepared: Prepared,
    *,
    progress: Callable[[int, int], None] | None = None,
    warm_up: bool = True,
    speculate: Literal["ngram"] | None = None,
    max_queue: int | None = None,
    unload_after: float | None = None,
) -> Running:
    """Packs the weights (progress(done, total) in bytes), runs the largest prefill once, starts the
    engine. speculate, max_queue, unload_after: see Engine.

    Raises KtError; then nothing stays in memory.
    """
    from kt.engine.cpu_executor import CpuExecutor
    from kt.kernels.library import load
    from kt.tokenizer import Tokenizer

    decided = prepared.plan
    # Before the weights: a bad tokenizer fails fast.
    tokenizer = Tokenizer.load(prepared.checkpoint)
    if tokenizer.vocab_size > prepared.spec.vocab:
        raise ModelError(
            f"{prepared.checkpoint.path}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, "
            f"the model's vocabulary (vocab_size) ends at {prepared.spec.vocab - 1}",
            hint="Tokenizer and weights are of different models.",
        )
    tell = [progress]  # of the first loading only: nobody watches the later ones

    def make() -> CpuExecutor:
        return CpuExecutor(
            replace(prepared.spec, context=decided.context.value),
            prepared.checkpoint,
            load(decided.variant.value),
            cpus=decided.worker_cpus.value,
            n_pages=decided.n_pages.value,
            kv_format=decided.kv_format.value,
            max_batch_tokens=decided.max_batch_tokens,
            max_logits=decided.max_logits,
            progress=tell.pop() if tell else None,
            read=decided.loading.value == "read",
        )

    executor: Executor = make() if unload_after is None else Sleeper(make)
    try:
        engine = Engine(
            executor,
            tokenizer,
            model_name=prepared.name,
            max_batch=decided.max_batch.value,
            prefill_chunk=decided.max_batch_tokens - decided.max_batch.value,
            speculate=speculate,
            max_queue=max_queue,
            unload_after=unload_after,
        )
        if warm_up:
            engine.warm_up()
        engine.start()
    except NotFinite as error:
        executor.close()
        raise ModelError(
            f"{prepared.checkpoint.path} does not work: {error.message}",
            hint="The files are damaged, or were badly converted: download them again.",
        ) from None
    except BaseException:
        executor.close()
        raise
    return Running(prepared, tokenizer, executor, engine)
