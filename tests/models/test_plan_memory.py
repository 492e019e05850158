"""The plan against what the executor really holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kt.engine.cpu_executor import CpuExecutor
from kt.kernels.library import load
from kt.kernels.variants import select
from kt.machine.survey import survey
from kt.models import families
from kt.models.spec import AttentionSpec, RopeSpec
from kt.placement import budget
from kt.placement.plan import plan
from kt.units import Choice
from kt.weights.checkpoint import open_checkpoint
from tests.tiny import tiny_gguf, tiny_qwen3_moe

WIDE: dict[str, Any] = {
    "hidden_size": 512,
    "num_experts": 16,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 256,
    "head_dim": 128,
}


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K", "F16", "moe", "wide moe"])
@pytest.mark.parametrize(("max_batch", "kv_format"), [(1, "bf16"), (8, "bf16"), (8, "int8")])
def test_the_plan_is_what_the_executor_takes(
    tmp_path: Path, kind: str, max_batch: int, kv_format: budget.KvFormat
) -> None:
    if kind.endswith("moe"):
        path = tiny_qwen3_moe(tmp_path / "m", **(WIDE if kind.startswith("wide") else {}))
    else:
        path = tiny_gguf(tmp_path / "m.gguf", encoding=kind)
    checkpoint, machine = open_checkpoint(path), survey(gpus=False)
    spec = families.spec(checkpoint)
    best = select(machine.cpu, None)
    variant = Choice(best.value.name, best.reason)
    made = plan(
        spec,
        checkpoint,
        machine,
        model="m",
        variant=variant,
        max_batch=max_batch,
        kv_format=kv_format,
    )
    executor = CpuExecutor(
        spec,
        checkpoint,
        load(variant.value),
        cpus=made.worker_cpus.value,
        n_pages=made.n_pages.value,
        kv_format=made.kv_format.value,
        max_batch_tokens=made.max_batch_tokens,
        max_logits=made.max_logits,
    )
    try:
        held = executor.memory
    finally:
        executor.close()
    matrices = sum(
        made.parts.get(part, 0)
        for part in ("embedding", "attention", "mlp", "router", "experts", "head")
    )
    assert matrices == held["weights"]
    assert made.parts["kv_cache"] == held["kv"]
    assert held["working"] <= made.parts["working"] <= 1.6 * held["working"]


@pytest.mark.parametrize("name", budget.PACKINGS)
def test_packed_bytes_are_those_of_the_kernels(name: str) -> None:
    library = load("avx2")
    for n, k in ((1, 256), (16, 256), (17, 512), (100, 768), (5, 2048)):
        assert budget.packed_bytes(name, n, k) == library.lib.kt_packed_bytes(
            library.format(name), n, k
        )


def test_a_page_is_that_of_the_kernels() -> None:
    library = load("avx2")
    assert library.lib.kt_page_tokens() == budget.PAGE_TOKENS
    for kv_format in budget.KV_FORMATS:
        for head_dim in (16, 32, 80, 128, 192, 256):
            attention = AttentionSpec(8, 3, head_dim, 1.0, RopeSpec(0, ()))
            page = library.lib.kt_page_bytes(library.kv_format(kv_format), 3, head_dim)
            assert budget.position_bytes(attention, kv_format) * budget.PAGE_TOKENS == page
