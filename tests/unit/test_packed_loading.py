"""A converted model: mapped where it lies, or read into memory, and when which."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kt.convert.convert import Conversion
from kt.engine import packed_weights
from kt.engine.cpu_executor import CpuExecutor
from kt.engine.lowering import lower
from kt.errors import ModelError
from kt.kernels.library import load
from kt.machine.facts import Machine
from kt.machine.survey import survey
from kt.models.families import spec
from kt.placement import plan as plans
from kt.units import Choice
from kt.weights.checkpoint import Checkpoint, open_checkpoint
from kt.weights.share import Share
from tests.executors import all_logits, executor
from tests.tiny import tiny_gguf, tiny_qwen3_moe

IDS = [3, 17, 5, 99, 250, 31, 8, 64, 12]
MACHINE = survey(Path(__file__).parents[1] / "data" / "machines" / "zen4")


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    source = tiny_qwen3_moe(folder / "moe", mlp_only_layers=[1])
    Conversion(open_checkpoint(source), "int4").run(folder / "to", load("avx2"), threads=1)
    return folder / "to"


def plan_of(checkpoint: Checkpoint, machine: Machine = MACHINE) -> plans.Plan:
    variant = Choice("avx2", "a test")
    return plans.plan(spec(checkpoint), checkpoint, machine, model="x", variant=variant)


def test_weights_that_were_read_need_the_files_no_more(converted, tmp_path):
    folder = tmp_path / "to"
    shutil.copytree(converted, folder)
    mapped = executor(folder, "avx2", pages=4, tokens=32)
    want = all_logits(mapped, IDS)
    read = executor(folder, "avx2", pages=4, tokens=32, read=True)
    assert read.memory["weights"] == mapped.memory["weights"]
    np.testing.assert_array_equal(all_logits(read, IDS), want)
    for path in folder.glob("*.safetensors"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
    np.testing.assert_array_equal(all_logits(read, IDS), want)
    assert not np.array_equal(all_logits(mapped, IDS), want)
    mapped.close()
    read.close()


def test_progress_counts_the_bytes_that_are_read(converted, monkeypatch):
    monkeypatch.setattr(packed_weights, "PIECE", 192)  # many pieces, the last of each shorter
    checkpoint = open_checkpoint(converted)
    told = []
    made = CpuExecutor(
        spec(checkpoint),
        checkpoint,
        load("avx2"),
        cpus=survey(gpus=False).worker_cpus.value[:1],
        n_pages=4,
        max_batch_tokens=32,
        progress=lambda done, total: told.append((done, total)),
        read=True,
    )
    assert told == sorted(told) and told[-1] == (made.memory["weights"],) * 2
    mapped = executor(converted, "avx2", pages=4, tokens=32)
    np.testing.assert_array_equal(all_logits(made, IDS), all_logits(mapped, IDS))
    made.close()
    mapped.close()


def test_a_file_that_was_cut_is_an_error(converted, tmp_path):
    folder = tmp_path / "to"
    shutil.copytree(converted, folder)
    checkpoint = open_checkpoint(folder)
    matrices = lower(spec(checkpoint), checkpoint, load("avx2")).matrices
    (last,) = (m for m in matrices if m.tensors[0].name == "layers.1.v")
    path = folder / "layer-00001.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 64)
    with pytest.raises(ModelError, match="has become shorter"):
        packed_weights.read_into(last, np.empty(last.nbytes, np.uint8), 1)


def test_one_process_reads(converted):
    checkpoint = open_checkpoint(converted)
    made = plan_of(checkpoint)
    assert made.loading.value == "read" and made.mapped_bytes == made.source_bytes == 0
    assert made.to_json()["loading"] == {"value": "read", "reason": made.loading.reason}
    checkpoint.close()


def test_two_processes_share_one_copy(converted):
    first = open_checkpoint(converted)
    second = open_checkpoint(converted)
    made = plan_of(second)
    assert made.loading.value == "mapped" and "another process" in made.loading.reason
    assert made.mapped_bytes == second.tensor_bytes
    first.close()
    second.close()
    again = open_checkpoint(converted)
    assert plan_of(again).loading.value == "read"
    again.close()


def test_what_takes_long_is_mapped(converted, monkeypatch):
    checkpoint = open_checkpoint(converted)
    monkeypatch.setattr(plans, "READ_AT_MOST", checkpoint.tensor_bytes)
    assert plan_of(checkpoint).loading.value == "read"
    monkeypatch.setattr(plans, "READ_AT_MOST", checkpoint.tensor_bytes - 1)
    made = plan_of(checkpoint)
    assert made.loading.value == "mapped" and "would take longer" in made.loading.reason
    checkpoint.close()


def test_without_huge_pages_there_is_nothing_to_win(converted):
    checkpoint = open_checkpoint(converted)
    memory = replace(MACHINE.memory, transparent_huge_pages="never")
    made = plan_of(checkpoint, replace(MACHINE, memory=memory))
    assert made.loading.value == "mapped" and "switched off" in made.loading.reason
    checkpoint.close()


def test_other_models_are_packed(tmp_path):
    made = plan_of(open_checkpoint(tiny_gguf(tmp_path / "x.gguf")))
    assert made.loading.value == "packed" and made.source_bytes > 0 == made.mapped_bytes


def test_marks_go_with_their_holders(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    first = Share(path)
    second = Share(path)
    third = Share(path)
    assert (first.others, second.others, third.others) == (False, True, True)
    first.close()
    second.close()
    assert Share(path).others
    third.close()
    third.close()
    assert not Share(path).others
