"""What each input of a matrix counts: its mean square while the model reads a text.

An error in a weight changes an output by that error times the input, so squared errors weighted by
the inputs' mean squares are those of the outputs. Only what the step program shows between its
operations is measured: the inputs of q, k, v, o, gate and up. The inputs of down stay inside an
operation; its weights count alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
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
from kt.weights.checkpoint import Checkpoint

CHUNK: Final = 256
TOKENS: Final = 16_384
"""What is read of a text, in parts of CHUNK tokens."""
LEAST_TOKENS: Final = 64
FLOOR: Final = 0.01
"""No input counts less than this part of the mean: the text is only a sample."""

Importance = dict[str, F32]
"""Role ("layers.3.q", "layers.3.experts.up") -> float32 [k], 1 on average."""


Point = tuple[str, list[str]]
"""A slot, and the roles of the matrices that read it."""

_MLP: Final = ("gate", "up", "experts.gate", "experts.up")


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
        points: list[Point] = []
        executor = self._executor(checkpoint, machine, points)
        try:
            return _measure(executor, points, ids, progress or (lambda done, total: None))
        finally:
            executor.close()

    def _executor(
        self, checkpoint: Checkpoint, machine: Machine, points: list[Point]
    ) -> CpuExecutor:
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
            alter=lambda program: points.extend(_spread(program, self.library.lib)),
        )


def _measure(
    executor: CpuExecutor,
    points: list[Point],
    ids: Sequence[int],
    progress: Callable[[int, int], None],
) -> Importance:
    length = min(CHUNK, executor.context)
    chunks = [ids[first : first + length] for first in range(0, len(ids), length)]
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for done, chunk in enumerate(chunks):
        executor.forward(_batch(chunk), n_ops=len(executor.operations) - 1)
        for slot, _ in points:
            squares = np.square(executor.slot(slot, len(chunk)).astype(np.float64)).sum(axis=0)
            sums[slot] = sums[slot] + squares if slot in sums else squares
        progress(done + 1, len(chunks))
    result: Importance = {}
    for slot, roles in points:
        mean = float(sums[slot].mean()) or 1.0
        counts = np.maximum(sums[slot] / mean, FLOOR).astype(np.float32)
        result |= dict.fromkeys(roles, counts)
    return result


def _spread(program: StepProgram, lib: Any) -> list[Point]:
    """Gives every norm and attention of a layer a slot of its own, so that one pass shows them all;
    what reads them follows.
    """
    names = {number: name for name, (number, _) in program.slots.items()}
    points: list[Point] = []
    place: dict[int, int] = {}  # slot -> where its last value is
    layer, after_mlp = -1, True
    for op in program.operations:
        name, number = names[op.out], op.out
        source = getattr(op, "in")
        setattr(op, "in", place.get(source, source))
        if op.kind == lib.KT_OP_ATTENTION:
            layer, after_mlp = layer + 1, False
            roles = ["o"]
        elif op.kind == lib.KT_OP_NORM and name == "normed":
            roles = ["q", "k", "v"] if after_mlp else list(_MLP)
        else:
            after_mlp = after_mlp or op.kind == lib.KT_OP_MLP
            continue
        at = layer + 1 if after_mlp else layer
        slot = f"{name}.{len(points)}"
        place[number] = op.out = len(program.slots)
        program.slots[slot] = (place[number], program.slots[name][1])
        points.append((slot, [f"layers.{at}.{role}" for role in roles]))
    return points


def _batch(ids: Sequence[int]) -> Batch:
    """One sequence from its beginning, without logits."""
    array = np.array(ids, np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32).reshape(1, -1)
    first, ends = np.zeros(1, np.int32), np.array([0, len(ids)], np.int32)
    return Batch(array, ends, first, pages, np.zeros(0, np.int32))
