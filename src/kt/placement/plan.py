"""The plan: what will lie where and why, or a refusal in bytes that names what would fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from kt.errors import DoesNotFit, UsageError
from kt.machine.facts import Machine
from kt.machine.workers import limited
from kt.models.spec import ModelSpec
from kt.placement import budget
from kt.placement.budget import KvFormat
from kt.placement.refusal import refuse
from kt.units import GIB, Choice, format_bytes
from kt.weights.checkpoint import Checkpoint

Loading = Literal["packed", "read", "mapped"]

MAX_BATCH: Final = 8
PREFILL_CHUNK: Final = 512
SPARE_LOGITS: Final = 32
"""Rows of a step with logits beside one a sequence: scored prompts, checked guesses."""
GOOD_CONTEXT: Final = 4096
"""Below this much context the KV cache may take all that is left, not just half."""
LEAST_ASKED: Final = 16
"""A shorter context holds hardly a question, and no answer to it."""
READ_AT_MOST: Final = 16 * GIB
"""Bytes of a converted model that are read at the start, in some seconds; more is mapped."""
AFTER_KV: Final = ("working", "process", "grammar")
"""Parts that are no weights and no KV cache."""
LEAST_CONTEXT: Final = 512
"""kt does not choose less than this by itself."""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before memory is taken. Amounts in bytes.

    parts: part -> bytes, weights first, then "kv_cache", "working", "process" and, of a server,
    "grammar"; their sum is what is needed. source_bytes: the model's files, mapped while weights
    are packed; such pages are dropped by the kernel when memory is short, so they are not counted.
    loading: how weights come into memory: "packed" from the model's files, or those of a converted
    model "read", or used where they are "mapped". mapped_bytes: how much is used so; it is among
    the parts. n_pages: KV pages of PAGE_TOKENS positions, shared by all sequences. notes: what the
    user should know.
    """

    model: str
    family: str
    variant: Choice[str]
    worker_cpus: Choice[tuple[int, ...]]
    context: Choice[int]
    max_batch: Choice[int]
    kv_format: Choice[KvFormat]
    n_pages: Choice[int]
    max_batch_tokens: int
    max_logits: int
    parts: dict[str, int]
    source_bytes: int
    loading: Choice[Loading]
    mapped_bytes: int
    usable: Choice[int]
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """Bytes of memory in all."""
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; docs/run.md lists the fields."""
        return {
            "model": self.model,
            "family": self.family,
            "variant": _choice(self.variant),
            "threads": {"value": len(self.worker_cpus.value), "reason": self.worker_cpus.reason},
            "worker_cpus": list(self.worker_cpus.value),
            "context": _choice(self.context),
            "max_batch": _choice(self.max_batch),
            "kv_format": _choice(self.kv_format),
            "kv_pages": _choice(self.n_pages),
            "kv_page_tokens": budget.PAGE_TOKENS,
            "max_batch_tokens": self.max_batch_tokens,
            "max_logits": self.max_logits,
            "loading": _choice(self.loading),
            "memory": {
                "needed_bytes": self.needed,
                "usable_bytes": self.usable.value,
                "usable_reason": self.usable.reason,
                "parts": dict(self.parts),
                "source_bytes": self.source_bytes,
                "mapped_bytes": self.mapped_bytes,
            },
            "notes": list(self.notes),
        }


def _choice(choice: Choice[Any]) -> dict[str, Any]:
    return {"value": choice.value, "reason": choice.reason}


def plan(
    spec: ModelSpec,
    checkpoint: Checkpoint,
    machine: Machine,
    *,
    model: str,
    variant: Choice[str],
    context: int | None = None,
    max_batch: int | None = None,
    threads: int | None = None,
    kv_format: KvFormat | None = None,
    serving: bool = False,
) -> Plan:
    """Decides what the user left open. serving: requests may bring grammars. Raises DoesNotFit, or
    UsageError for a value that makes no sense."""
    batch = Choice(
        max_batch or MAX_BATCH, "asked for" if max_batch else "sequences computed at once"
    )
    kv: Choice[KvFormat] = (
        Choice(kv_format, "asked for")
        if kv_format
        else Choice("bf16", "the usual one; int8 takes half the memory")
    )
    max_batch_tokens = PREFILL_CHUNK + batch.value
    max_logits = SPARE_LOGITS + batch.value
    workers = limited(machine.worker_cpus, threads, f"--threads {threads}")
    parts = budget.weight_bytes(spec, checkpoint)
    if checkpoint.gathers:
        parts["orders"] = budget.order_bytes(spec, checkpoint)
    parts["working"] = budget.working_bytes(
        spec,
        max_batch_tokens=max_batch_tokens,
        max_logits=max_logits,
        threads=len(workers.value),
        gathers=checkpoint.gathers,
    )
    parts["process"] = budget.PROCESS_BYTES
    if serving:
        parts["grammar"] = budget.GRAMMAR_BYTES + budget.GRAMMAR_TOKEN_BYTES * spec.vocab
    loading = _loading(checkpoint, machine)
    usable = Choice(machine.memory.usable, machine.memory.usable_reason)
    page = budget.page_bytes(spec, kv.value)
    free_pages = (usable.value - sum(parts.values())) // page
    positions = _context(spec, context, free_pages)
    room = free_pages if context and max_batch else free_pages // 2
    pages = _pages(positions.value, batch.value, room)
    parts = _with_kv(parts, pages.value * page)
    result = Plan(
        model=model,
        family=spec.family,
        variant=variant,
        worker_cpus=workers,
        context=positions,
        max_batch=batch,
        kv_format=kv,
        n_pages=pages,
        max_batch_tokens=max_batch_tokens,
        max_logits=max_logits,
        parts=parts,
        source_bytes=checkpoint.tensor_bytes if loading.value == "packed" else 0,
        loading=loading,
        mapped_bytes=checkpoint.tensor_bytes if loading.value == "mapped" else 0,
        usable=usable,
        notes=checkpoint.notes + _wider(checkpoint),
    )
    if result.needed > usable.value:
        raise refuse(result.to_json(), spec, checkpoint, asked=context)
    return result


def _loading(checkpoint: Checkpoint, machine: Machine) -> Choice[Loading]:
    """Mapped files lie in small pages, which makes decoding slower; reading them takes a moment."""
    if checkpoint.kind != "packed":
        return Choice("packed", "while the files are read")
    if checkpoint.shared:
        return Choice("mapped", "another process uses these files: one copy serves both")
    if machine.memory.transparent_huge_pages == "never":
        return Choice("mapped", "ready at once; huge pages are switched off")
    if checkpoint.tensor_bytes > READ_AT_MOST:
        size = format_bytes(checkpoint.tensor_bytes)
        return Choice("mapped", f"ready at once; reading {size} would take longer")
    return Choice("read", "huge pages make decoding faster than mapped files do")


def _wider(checkpoint: Checkpoint) -> tuple[str, ...]:
    types = budget.decoded_wider(checkpoint)
    if not types:
        return ()
    more = sum(types.values())
    return (
        f"{', '.join(types)}: decoded to codes of 2 to 4 bits, exactly; that takes {more} bytes "
        f"({format_bytes(more)}) more than the file has",
    )


def _context(spec: ModelSpec, asked: int | None, free_pages: int) -> Choice[int]:
    """How many positions a sequence may have; LEAST_CONTEXT if not even that fits."""
    if asked is not None:
        least = min(LEAST_ASKED, spec.context)
        if not least <= asked <= spec.context:
            why = "no answer fits into less" if asked < least else "the model has no more positions"
            raise UsageError(
                f"--context {asked}: choose {least} to {spec.context}; {why}",
                hint="Leave --context out to get as much as fits.",
            )
        return Choice(asked, "asked for")
    roomy = max(free_pages // 2, min(free_pages, budget.pages_for(GOOD_CONTEXT)))
    if budget.pages_for(spec.context) <= roomy:
        return Choice(spec.context, "all that the model was made for")
    fitting = [size for size in context_sizes(spec.context) if budget.pages_for(size) <= roomy]
    chosen = max([min(LEAST_CONTEXT, spec.context), *fitting])
    return Choice(chosen, f"what memory allows of the model's {spec.context}")


def context_sizes(limit: int) -> list[int]:
    """Round numbers of positions up to `limit`: powers of two, and halfway between them."""
    powers = [1 << i for i in range(5, limit.bit_length())]
    return sorted(s for power in powers for s in (power, power * 3 // 2) if s <= limit)


def _pages(context: int, max_batch: int, room: int) -> Choice[int]:
    """Enough for `max_batch` full contexts if they go into `room` pages, and at least for one."""
    one = budget.pages_for(context)
    if one * max_batch <= max(one, room):
        return Choice(one * max_batch, f"{max_batch} sequences of {context} positions")
    pages = max(one, room)
    return Choice(
        pages,
        f"what memory allows; {pages * budget.PAGE_TOKENS} positions are shared by up to "
        f"{max_batch} sequences",
    )


def _with_kv(parts: dict[str, int], kv: int) -> dict[str, int]:
    rest = {name: parts.pop(name) for name in AFTER_KV if name in parts}
    return parts | {"kv_cache": kv} | rest


def admit(weights: int, machine: Machine, model: str) -> None:
    """Refuses weights of that many bytes on disk that cannot fit, before they are downloaded.

    Packed weights are at least as large as on disk, so this never refuses what plan() would accept.
    """
    usable = machine.memory.usable
    if weights > usable:
        raise DoesNotFit(
            f"{model} has {weights} bytes of weights ({format_bytes(weights)}), and kt may use "
            f"{usable} bytes of memory here ({format_bytes(usable)}: "
            f"{machine.memory.usable_reason})",
            hint="Nothing was downloaded. A smaller or more strongly quantised model may fit; "
            "`kt models` shows sizes.",
        )
