"""What is decided from a model and a machine, and what a refusal says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kt.errors import DoesNotFit, UsageError
from kt.machine.facts import Machine
from kt.machine.survey import survey
from kt.models import families
from kt.placement import budget, plan
from kt.placement.refusal import PlanDoesNotFit
from kt.units import GIB, MIB, Choice
from kt.weights.checkpoint import open_checkpoint
from tests.tiny import tiny_gguf, tiny_llama

Planner = Callable[..., plan.Plan]
MACHINES = Path(__file__).parents[1] / "data" / "machines"


def machine_with(usable: int) -> Machine:
    machine = survey(MACHINES / "zen4")
    memory = dataclasses.replace(machine.memory, usable=usable, usable_reason="the memory limit")
    return dataclasses.replace(machine, memory=memory)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    checkpoint = open_checkpoint(tiny_gguf(path, encoding="F16", max_position_embeddings=100_000))
    spec = families.spec(checkpoint)

    def make(usable: int, **options: Any) -> plan.Plan:
        variant = Choice("avx2", "a test")
        return plan.plan(
            spec, checkpoint, machine_with(usable), model="tiny", variant=variant, **options
        )

    make.page = budget.page_bytes(spec, "bf16")  # type: ignore[attr-defined]
    make.rest = make(64 * GIB).needed - make(64 * GIB).parts["kv_cache"]  # type: ignore[attr-defined]
    return make


def test_a_large_machine_gets_everything(planner: Planner) -> None:
    made = planner(64 * GIB)
    assert made.context == (100_000, "all that the model was made for")
    assert made.n_pages.value == 8 * 3125
    assert made.needed == sum(made.parts.values()) <= 64 * GIB
    assert list(made.parts)[-3:] == ["kv_cache", "working", "process"]


def test_a_server_also_has_the_process_of_grammars(planner: Planner) -> None:
    alone, served = planner(64 * GIB), planner(64 * GIB, serving=True)
    assert list(served.parts)[-2:] == ["process", "grammar"]
    assert served.needed - alone.needed == served.parts["grammar"] == (20 << 20) + 1024 * 320
    assert planner(served.needed, serving=True).needed <= served.needed


def test_half_of_what_is_left_goes_to_the_context(planner: Planner) -> None:
    usable = planner.rest + 1000 * planner.page  # type: ignore[attr-defined]
    made = planner(usable)
    # 500 pages hold 16000 positions; the round number below is 12288 = 384 pages
    assert made.context.value == 12_288
    assert "of the model's 100000" in made.context.reason
    assert made.n_pages.value == 500
    assert "16000 positions are shared by up to 8 sequences" in made.n_pages.reason
    assert planner(usable, context=12_288).n_pages.value == 500
    # Who asks for both gets both if there is room at all.
    assert planner(usable, context=8192, max_batch=3).n_pages.value == 3 * 256


def test_a_small_machine_gives_all_that_is_left(planner: Planner) -> None:
    made = planner(planner.rest + 130 * planner.page)  # type: ignore[attr-defined]
    assert (made.context.value, made.n_pages.value) == (4096, 128)


@pytest.mark.parametrize("pages", range(16, 400, 37))
def test_what_is_planned_fits(planner: Planner, pages: int) -> None:
    usable = planner.rest + pages * planner.page  # type: ignore[attr-defined]
    made = planner(usable)
    assert made.needed <= usable
    assert made.n_pages.value * budget.PAGE_TOKENS >= made.context.value


def test_what_the_user_asks_for_is_done_or_refused(planner: Planner) -> None:
    made = planner(64 * GIB, context=5000, max_batch=3, threads=1)
    assert made.context == (5000, "asked for")
    assert made.max_batch == (3, "asked for")
    assert made.n_pages.value == 3 * 157
    assert len(made.worker_cpus.value) == 1
    with pytest.raises(
        UsageError, match=r"--context 100001: choose 16 to 100000; the model has no"
    ):
        planner(64 * GIB, context=100_001)
    with pytest.raises(UsageError, match=r"--context 15: .* no answer fits into less"):
        planner(64 * GIB, context=15)
    assert planner(64 * GIB, context=16).context.value == 16
    with pytest.raises(UsageError, match=r"--threads 999: this machine has 1 to"):
        planner(64 * GIB, threads=999)


def test_a_refusal_counts_and_names_a_context_that_fits(planner: Planner) -> None:
    usable = planner.rest + 100 * planner.page  # type: ignore[attr-defined]
    with pytest.raises(PlanDoesNotFit) as caught:
        planner(usable, context=50_000)
    needed = planner.rest + 1563 * planner.page  # type: ignore[attr-defined]
    assert f"needs {needed} bytes" in caught.value.message
    assert f"may use {usable} here" in caught.value.message
    assert "the memory limit" in caught.value.message
    assert caught.value.exit_code == 5
    assert caught.value.hint == "A shorter context fits: --context 3200."
    assert planner(usable, context=3200).needed <= usable
    with pytest.raises(PlanDoesNotFit):
        planner(usable, context=3201)


def test_int8_holds_nearly_twice_as_much(tmp_path: Path) -> None:
    """Heads of 128: a page of int8 is 52 % of one of bfloat16."""
    sizes = {"head_dim": 128, "max_position_embeddings": 100_000}
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", encoding="F16", **sizes))
    spec = families.spec(checkpoint)
    pages = {kv: budget.page_bytes(spec, kv) for kv in budget.KV_FORMATS}
    assert pages["int8"] / pages["bf16"] == pytest.approx(0.5234, abs=1e-4)

    def planned(room: int, **options: Any) -> plan.Plan:
        variant = Choice("avx2", "a test")
        rest = plan.plan(spec, checkpoint, machine_with(64 * GIB), model="m", variant=variant)
        usable = rest.needed - rest.parts["kv_cache"] + room
        return plan.plan(
            spec, checkpoint, machine_with(usable), model="m", variant=variant, **options
        )

    room = 1000 * pages["bf16"]
    half, whole = planned(room, kv_format="bf16"), planned(room, kv_format="int8")
    assert (half.n_pages.value, whole.n_pages.value) == (500, 955)
    assert (half.context.value, whole.context.value) == (12_288, 24_576)
    assert whole.kv_format == ("int8", "asked for") and half == planned(room, kv_format="bf16")
    assert planned(room).kv_format.value == "bf16"
    assert whole.parts["kv_cache"] == 955 * pages["int8"]
    with pytest.raises(PlanDoesNotFit) as caught:
        planned(100 * pages["bf16"], context=6000)
    assert caught.value.hint == (
        "It fits with half the KV cache: --kv-format int8. A shorter context fits: --context 3200."
    )
    assert planned(100 * pages["bf16"], context=6000, kv_format="int8").needed
    with pytest.raises(PlanDoesNotFit) as caught:
        planned(100 * pages["bf16"], context=7000, kv_format="int8")
    assert caught.value.hint == "A shorter context fits: --context 6112."


def test_a_refusal_names_a_quantisation_that_fits(tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    checkpoint = open_checkpoint(tiny_llama(tmp_path / "m", dtype="float32", **sizes))
    spec = families.spec(checkpoint)
    values = 4 * 3 * 512 * 2048

    def refused(usable: int) -> PlanDoesNotFit:
        with pytest.raises(PlanDoesNotFit) as caught:
            plan.plan(
                spec, checkpoint, machine_with(usable), model="t", variant=Choice("avx2", "a test")
            )
        return caught.value

    rest = (
        budget.PROCESS_BYTES
        + budget.working_bytes(spec, max_batch_tokens=520, max_logits=40, threads=8)
        + 3 * MIB
    )
    assert "as a Q8_0 GGUF would fit" in refused(rest + values * 34 // 32).hint
    assert "as a Q4_K_M GGUF would fit" in refused(rest + values * 148 // 256).hint
    hint = refused(64 * MIB).hint
    assert hint.startswith("A smaller model is needed. Even as Q4_0 it would need")


def test_json_holds_the_reasons(planner: Planner) -> None:
    document = planner(GIB).to_json()
    for name in ("variant", "threads", "context", "max_batch", "kv_format", "kv_pages"):
        assert document[name]["reason"]
    memory = document["memory"]
    assert memory["needed_bytes"] == sum(memory["parts"].values())
    assert memory["usable_bytes"] == GIB


def test_weights_that_cannot_fit_are_refused_before_a_download() -> None:
    plan.admit(GIB, machine_with(GIB), "m")
    with pytest.raises(DoesNotFit, match=f"m has {GIB + 1} bytes of weights.*may use {GIB} bytes"):
        plan.admit(GIB + 1, machine_with(GIB), "m")


def test_context_sizes_are_round() -> None:
    assert plan.context_sizes(300) == [32, 48, 64, 96, 128, 192, 256]
