"""What a user is told when a model does not fit: the bytes by part, and what would fit instead."""

from __future__ import annotations

from typing import Any

from kt.errors import DoesNotFit, ModelError
from kt.models.spec import ModelSpec
from kt.placement import budget
from kt.placement.budget import KvFormat
from kt.units import format_bytes
from kt.weights.checkpoint import Checkpoint
from kt.weights.tensor import Tensor

SMALLER_FORMATS = (("Q8_0", "I8_G32"), ("Q4_K_M", "I4_K32M"), ("Q4_0", "I4_G32"))
"""Quantisations that people publish, largest first, with the packed format of nearly all their
weights."""

RULE_CONTEXT = 2048
"""The context for which another quantisation is said to fit."""


class PlanDoesNotFit(DoesNotFit):
    """plan: what was refused, as JSON values (the fields of Plan.to_json)."""

    def __init__(self, message: str, *, hint: str, plan: dict[str, Any]) -> None:
        super().__init__(message, hint=hint)
        self.plan = plan


def refuse(
    plan: dict[str, Any], spec: ModelSpec, checkpoint: Checkpoint, *, asked: int | None
) -> PlanDoesNotFit:
    """The refusal of `plan`; `asked` is the context the user wanted, None if it was left to kt."""
    memory = plan["memory"]
    needed, usable = memory["needed_bytes"], memory["usable_bytes"]
    parts = ", ".join(f"{name} {format_bytes(count)}" for name, count in memory["parts"].items())
    return PlanDoesNotFit(
        f"{plan['model']} needs {needed} bytes of memory ({format_bytes(needed)}), and kt may use "
        f"{usable} here ({format_bytes(usable)}: {memory['usable_reason']}). "
        f"It would take: {parts}",
        hint=_what_fits(memory, spec, checkpoint, asked, plan["kv_format"]["value"]),
        plan=plan,
    )


def _what_fits(
    memory: dict[str, Any],
    spec: ModelSpec,
    checkpoint: Checkpoint,
    asked: int | None,
    kv_format: KvFormat,
) -> str:
    parts, usable = memory["parts"], memory["usable_bytes"]
    room = usable - (memory["needed_bytes"] - parts["kv_cache"])
    if asked is not None:
        fits = {kv: _positions(room, spec, kv) for kv in budget.KV_FORMATS}
        if kv_format != "int8" and fits["int8"] >= asked:
            return f"It fits with half the KV cache: --kv-format int8. {_shorter(fits[kv_format])}"
        if fits[kv_format]:
            return _shorter(fits[kv_format])
    rest = sum(parts.get(name, 0) for name in ("working", "process", "grammar"))
    pages = budget.pages_for(min(RULE_CONTEXT, spec.context))
    rest += pages * budget.page_bytes(spec, kv_format)
    smallest = ""
    for name, packed in SMALLER_FORMATS:
        total = rest + _as_format(spec, checkpoint, packed)
        if total >= memory["needed_bytes"]:
            continue
        if total <= usable:
            return (
                f"The same model as a {name} GGUF would fit: about {total} bytes "
                f"({format_bytes(total)}) with a context of {min(RULE_CONTEXT, spec.context)}."
            )
        smallest = f" Even as {name} it would need {total} bytes ({format_bytes(total)})."
    return f"A smaller model is needed.{smallest} `kt models` lists what fits here."


def _positions(room: int, spec: ModelSpec, kv_format: KvFormat) -> int:
    """Positions whose keys and values fit into `room` bytes."""
    pages = room // budget.page_bytes(spec, kv_format)
    return max(0, min(pages * budget.PAGE_TOKENS, spec.context))


def _shorter(positions: int) -> str:
    return f"A shorter context fits: --context {positions}." if positions else ""


def _as_format(spec: ModelSpec, checkpoint: Checkpoint, packed: str) -> int:
    """Bytes of all weights if every matrix were at most as large as in `packed`."""

    def smaller(tensor: Tensor) -> str:
        own = budget.native_format(tensor)
        n, k = tensor.shape
        try:
            better = budget.packed_bytes(packed, n, k) < budget.packed_bytes(own, n, k)
        except ModelError:  # rows that are not whole groups of the format stay as they are
            return own
        return packed if better else own

    return sum(budget.weight_bytes(spec, checkpoint, smaller).values())
