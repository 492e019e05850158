"""Executors over real and tiny checkpoints, and the variants that this CPU runs them on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kt.engine.batch import F32, Batch
from kt.engine.cpu_executor import CpuExecutor
from kt.kernels.library import load
from kt.kernels.variants import VARIANTS
from kt.machine.survey import survey
from kt.models.families import spec
from kt.placement.budget import KvFormat
from kt.weights.checkpoint import open_checkpoint

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"  # `make` fetches it
PAGE = 32

# What this CPU runs, and the AMX variant over its software tiles.
NATIVE = [v.name for v in VARIANTS if not v.missing(survey(gpus=False).cpu)]
RUNNABLE = [*NATIVE, "amx_model"]


def executor(
    path: Path,
    variant: str,
    *,
    threads: int = 2,
    pages: int = 64,
    tokens: int = 1024,
    read: bool = False,
    kv_format: KvFormat = "bf16",
) -> CpuExecutor:
    """An executor over `path`; threads wrap around the CPUs this process may use. read: see
    CpuExecutor.
    """
    checkpoint = open_checkpoint(path)
    allowed = survey(gpus=False).worker_cpus.value
    cpus = [allowed[i % len(allowed)] for i in range(threads)]
    made = CpuExecutor(
        spec(checkpoint),
        checkpoint,
        load(variant),
        cpus=cpus,
        n_pages=pages,
        kv_format=kv_format,
        max_batch_tokens=tokens,
        read=read,
    )
    assert made.variant == variant
    return made


def i32(values: Sequence[int] | Sequence[Sequence[int]]) -> np.ndarray:
    return np.array(values, np.int32)


def one_sequence(ids: Sequence[int], *, first: int = 0, logits: Sequence[int] = (), page: int = 0):
    """A batch of one sequence whose pages are page, page + 1, ..."""
    count = -(-(first + len(ids)) // PAGE)
    pages = [list(range(page, page + count))]
    return Batch(i32(ids), i32([0, len(ids)]), i32([first]), i32(pages), i32(logits))


def all_logits(made: CpuExecutor, ids: Sequence[int], *, chunk: int = 0, page: int = 0) -> F32:
    """Logits of every position [len(ids), vocab], prefilled in chunks (0: at once)."""
    chunk = chunk or len(ids)
    parts = []
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        batch = one_sequence(part, first=first, logits=range(len(part)), page=page)
        parts.append(made.forward(batch).copy())
    return np.concatenate(parts)
