"""Where a forward pass first leaves the finite numbers, and which tensor is to blame."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kt.weights.dequantize import dequantize
from kt.weights.packed_folder import is_packed

if TYPE_CHECKING:
    from kt.engine.batch import Batch
    from kt.engine.cpu_executor import CpuExecutor
    from kt.engine.lowering import StepProgram
    from kt.weights.checkpoint import Checkpoint
    from kt.weights.tensor import Tensor

_KINDS = ("EMBED", "NORM", "LINEAR", "ATTENTION", "ROUTE", "MLP", "SELECT")
_PARTS = ("gate", "up", "down")
_ROWS = 4096  # of a tensor that are looked at together


def diagnose(
    executor: CpuExecutor, program: StepProgram, checkpoint: Checkpoint, lib: Any, batch: Batch
) -> str:
    """One sentence about a batch whose logits are not finite. Runs it again, some ten times."""
    count = len(program.operations)
    number = _first(count, lambda n_ops: _is_spoilt(executor, batch, n_ops))
    place, operation = program.places[number], program.operations[number]
    kind = next(name for name in _KINDS if getattr(lib, f"KT_OP_{name}") == operation.kind)
    where = f"operation {number} of {count} ({kind.lower()} of {place.rstrip('.') or 'the model'})"
    tensors = list(_tensors(checkpoint, place))
    for tensor in tensors:
        if not is_packed(tensor) and not _is_finite(tensor):
            return f"tensor {tensor.name} holds numbers that are not finite; first seen in {where}"
    if any(map(is_packed, tensors)):
        verify = f"kt convert --verify {shlex.quote(str(checkpoint.path))}"
        return f"first seen in {where}; `{verify}` tells whether the converted files are damaged"
    return f"first seen in {where}, whose tensors are all finite"


def _first(count: int, spoilt: Callable[[int], bool]) -> int:
    """The first of `count` operations after which something is not finite; after the last one it
    is. From there on it stays: every layer adds to the hidden state.
    """
    low, high = 0, count  # not spoilt after `low` operations, spoilt after `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spoilt(middle) else (middle, high)
    return high - 1


def _is_spoilt(executor: CpuExecutor, batch: Batch, n_ops: int) -> bool:
    executor.forward(batch, n_ops=n_ops)
    for slot in {"hidden", executor.operations[n_ops - 1][1]}:
        chosen = slot.startswith("selected") or slot == "logits"
        rows = len(batch.logit_rows if chosen else batch.tokens)
        if not np.isfinite(executor.slot(slot, rows)).all():
            return True
    return False


def _tensors(checkpoint: Checkpoint, place: str) -> Iterator[Tensor]:
    """What the operations at `place` read: those of a layer, or all that are in none."""
    for role in sorted(checkpoint.roles):
        if role.startswith(place) and (place or not role.startswith("layers.")):
            yield checkpoint.tensor(role)
    layer = int(place.split(".")[1]) if place else -1
    if layer in checkpoint.expert_layers:
        for part in _PARTS:
            yield from checkpoint.experts(layer, part)  # type: ignore[arg-type]


def _is_finite(tensor: Tensor) -> bool:
    n, parts = tensor.shape[0], [tensor]
    if len(tensor.shape) == 2 and tensor.quant is None:
        parts = [tensor.rows(first, min(first + _ROWS, n)) for first in range(0, n, _ROWS)]
    with np.errstate(all="ignore"):
        return all(bool(np.isfinite(dequantize(part)).all()) for part in parts)
