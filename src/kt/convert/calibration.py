"""What each input of a matrix counts: its mean square while the model reads a text.

An error in a weight changes an output by that error times the input, so squared errors weighted by
the inputs' mean squares are those of the outputs. The inputs of q, k, v, o, gate and up are what
the step program shows between its operations; experts share theirs. The inputs of down stay inside
an operation, which adds their squares up (kt_op.squares), for every expert apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.engine.batch import F32, Batch
from kt.engine.cpu_executor import CpuExecutor
from kt.engine.lowering import StepProgram
from kt.errors import UsageError
from kt.kernels.library import Library
from kt.machine.facts import Machine
from kt.models import families
from kt.placement.budget import pages_for
from kt.placement.plan import plan
from kt.tokenizer import Tokenizer
from kt.units import Choice
from kt.weights.act_order import columns_of
from kt.weights.checkpoint import Checkpoint

CHUNK: Final = 240
TOKENS: Final = 16_384
"""What is read of a text, in parts of CHUNK tokens."""
LEAST_TOKENS: Final = 64
FLOOR: Final = 0.01
"""No input counts less than this part of the mean: the text is only a sample."""
PRIOR: Final = 64
"""The layer's mean joins what an expert saw, as if it were of this many more tokens."""

Importance = dict[str, F32]
"""Role ("layers.3.q", "layers.3.experts.up") -> float32 [k], 1 on average; of the experts' down
[experts, k]."""

F64 = npt.NDArray[np.float64]


@dataclass
class Points:
    """What is measured. slots: a slot's name -> roles of the matrices that read it. squares: role
    of a down -> sums of squares [experts or 1, k] that the operation adds to. top_k: experts of a
    token, 1 for a dense layer, by the same role.
    """

    slots: dict[str, list[str]] = field(default_factory=dict)
    squares: dict[str, F64] = field(default_factory=dict)
    top_k: dict[str, int] = field(default_factory=dict)


_MLP: Final = ["gate", "up", "experts.gate", "experts.up"]


class Calibration:
    """A text for calibration. Raises UsageError if it cannot be read."""

    def __init__(self, path: Path, library: Library) -> None:
        try:
            data = path.read_bytes()
            self.text = data.decode()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not UTF-8 text") from None
        self.path = path
        self.library = library
        # Another variant rounds activations otherwise, and could choose other codes.
        self.identity = {"sha256": hashlib.sha256(data).hexdigest(), "variant": library.name}

    def measure(
        self,
        checkpoint: Checkpoint,
        machine: Machine,
        progress: Callable[[int, int], None] | None = None,
    ) -> Importance:
        """Runs the model as it is. progress(done, total) counts parts of the text. Raises
        DoesNotFit, and UsageError for a text that is too short.
        """
        ids = Tokenizer.load(checkpoint).encode(self.text)[:TOKENS]
        if len(ids) < LEAST_TOKENS:
            raise UsageError(
                f"{self.path} has {len(ids)} tokens; {LEAST_TOKENS} are the least for calibration",
                hint=f"A few pages of the kind of text the model is for: {TOKENS} tokens.",
            )
        points = Points()
        executor = self._executor(checkpoint, machine, points)
        try:
            sums = _sum_squares(executor, points, ids, progress or (lambda done, total: None))
            return _importance(checkpoint, points, sums, len(ids))
        finally:
            executor.close()

    def _executor(self, checkpoint: Checkpoint, machine: Machine, points: Points) -> CpuExecutor:
        model = families.spec(checkpoint)
        decided = plan(
            model,
            checkpoint,
            machine,
            model=checkpoint.path.name,
            variant=Choice(self.library.name, "asked for"),
            context=min(CHUNK, model.context),
            max_batch=1,
        )
        return CpuExecutor(
            model,
            checkpoint,
            self.library,
            cpus=decided.worker_cpus.value,
            n_pages=pages_for(CHUNK),
            max_batch_tokens=CHUNK,
            max_logits=1,
            alter=lambda program: _spread(program, self.library, points),
        )


def _sum_squares(
    executor: CpuExecutor,
    points: Points,
    ids: Sequence[int],
    progress: Callable[[int, int], None],
) -> dict[str, F64]:
    """Sums of squares of every slot [k]; those of the inputs of down are in `points` then."""
    length = min(CHUNK, executor.context)
    chunks = [ids[first : first + length] for first in range(0, len(ids), length)]
    sums: dict[str, F64] = {}
    for done, chunk in enumerate(chunks):
        executor.forward(_batch(chunk), n_ops=len(executor.operations) - 1)
        for slot in points.slots:
            squares = np.square(executor.slot(slot, len(chunk)).astype(np.float64)).sum(axis=0)
            sums[slot] = sums[slot] + squares if slot in sums else squares
        progress(done + 1, len(chunks))
    return sums


def _importance(
    checkpoint: Checkpoint, points: Points, sums: dict[str, F64], tokens: int
) -> Importance:
    result: Importance = {}
    for slot, roles in points.slots.items():
        result |= dict.fromkeys(roles, _counts(sums[slot]))
    for role, squares in points.squares.items():
        _sort_back(checkpoint, role, squares)
        prior = squares.sum(axis=0) * (PRIOR / (tokens * points.top_k[role]))
        counts = _counts(squares + prior)
        result[role] = counts if len(counts) > 1 else counts[0]
    return result


def _sort_back(checkpoint: Checkpoint, role: str, squares: F64) -> None:
    """Puts the inputs of a down [experts, k] in the order of its columns in the file: in act-order
    they come in another.
    """
    if not checkpoint.gathers:
        return
    routed = role.endswith("experts.down")
    layer = int(role.split(".")[1])
    tensors = checkpoint.experts(layer, "down") if routed else [checkpoint.tensor(role)]
    for row, tensor in zip(squares, tensors, strict=True):
        columns = columns_of(tensor)
        if columns is not None:
            row[columns] = row.copy()


def _counts(squares: F64) -> F32:
    """Sums of squares [k], or [experts, k], as what an input counts."""
    mean = squares.mean(axis=-1, keepdims=True)
    counts: F32 = np.maximum(squares / np.where(mean > 0, mean, 1), FLOOR).astype(np.float32)
    return counts


def _spread(program: StepProgram, library: Library, points: Points) -> None:
    """Gives every norm and attention of a layer a slot of its own, so that one pass shows them all;
    what reads them follows. MLPs get a place for the squares of what their down reads.
    """
    lib = library.lib
    names = {number: name for name, (number, _) in program.slots.items()}
    place: dict[int, int] = {}  # slot -> where its last value is
    attended = ""  # the layer whose attention has been
    for op, layer in zip(program.operations, program.places, strict=True):
        name, number = names[op.out], op.out
        source = getattr(op, "in")
        setattr(op, "in", place.get(source, source))
        if op.kind == lib.KT_OP_ATTENTION:
            attended, roles = layer, ["o"]
        elif op.kind == lib.KT_OP_NORM and name == "normed":
            roles = _MLP if attended == layer else ["q", "k", "v"]
        else:
            if op.kind == lib.KT_OP_MLP:
                _count_squares(op, layer, library, points)
            continue
        slot = f"{name}.{len(points.slots)}"
        place[number] = op.out = len(program.slots)
        program.slots[slot] = (place[number], program.slots[name][1])
        points.slots[slot] = [layer + role for role in roles]


def _count_squares(op: Any, layer: str, library: Library, points: Points) -> None:
    routed = op.router.top_k > 0
    role = f"{layer}experts.down" if routed else f"{layer}down"
    squares = np.zeros((op.w[0].count, op.w[0].n))
    op.squares = library.ffi.cast("double *", squares.ctypes.data)
    points.squares[role], points.top_k[role] = squares, op.router.top_k or 1


def _batch(ids: Sequence[int]) -> Batch:
    """One sequence from its beginning, without logits."""
    array = np.array(ids, np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32).reshape(1, -1)
    first, ends = np.zeros(1, np.int32), np.array([0, len(ids)], np.int32)
    return Batch(array, ends, first, pages, np.zeros(0, np.int32))
