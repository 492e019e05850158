"""The Machine's JSON, the kernel's list format, accelerators and disks."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kt.errors import MachineError
from kt.machine import disk, gpu
from kt.machine.facts import Disk, Gpu, Machine
from kt.machine.survey import survey
from kt.machine.tree import Tree, format_ids, parse_ids
from kt.units import GIB
from tests.machines import NAMES, captured

FULL = replace(
    captured("sapphire_rapids"),
    gpus=(Gpu(0, "H200", 141 * GIB, 140 * GIB, "nvml", "570.1", "9.0", None),),
    disk=Disk("/models", 4000 * GIB, 12345),
    nodes=tuple(replace(node, bandwidth=2.5e11) for node in captured("numa_cpuless").nodes),
)


@pytest.mark.parametrize("name", NAMES)
def test_json_round_trip(name: str) -> None:
    machine = captured(name)
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_json_round_trip_of_this_machine_and_of_a_full_one() -> None:
    for machine in (survey(), FULL):
        again = Machine.from_json(json.loads(json.dumps(machine.to_json())))
        assert again == machine
        assert hash(again) == hash(machine)


def test_json_shape() -> None:
    data = FULL.to_json()
    assert data["schema"] == 1
    assert data["worker_cpus"] == {"value": [0, 1], "reason": "one per SMT pair"}
    assert data["cpu"]["flags"] == sorted(data["cpu"]["flags"])
    assert data["nodes"][2]["distances"] == [[0, 14], [1, 24], [2, 10]]
    assert data["gpus"][0]["node"] is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.update(schema=2), "schema 2"),
        (lambda data: data.pop("schema"), "schema None"),
        (lambda data: data.pop("memory"), "memory"),
        (lambda data: data["cpu"].update(amx_permitted="yes"), "expected bool"),
        (lambda data: data["memory"].update(total=1.5), "expected int"),
        (lambda data: data["nodes"][0].update(distances=[[0]]), "shorter"),
        (lambda data: data.update(worker_cpus=[0, 1]), "damaged"),
    ],
)
def test_damaged_json_is_refused(change, says: str) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(json.dumps(FULL.to_json()))
    change(data)
    with pytest.raises(MachineError, match=says):
        Machine.from_json(data)


@given(st.sets(st.integers(0, 300)))
def test_lists_of_ids(ids: set[int]) -> None:
    assert parse_ids(format_ids(tuple(ids))) == tuple(sorted(ids))


def test_the_kernels_list_format() -> None:
    assert parse_ids("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert format_ids((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"
    assert parse_ids("\n") == ()


def test_what_is_missing_or_malformed_is_absent(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("x-y")
    tree = Tree(tmp_path)
    assert tree.text("/none") is None
    assert tree.number("/odd") is None
    assert tree.ids("/odd") is None
    assert tree.numbered("/none", "node") == ()


def test_an_empty_tree_is_no_crash(tmp_path: Path) -> None:
    machine = survey(tmp_path)
    assert machine.worker_cpus.value == ()
    assert machine.memory.usable == 0


def test_a_replayed_tree_has_nothing_of_this_machine() -> None:
    machine = captured("zen5")
    assert machine.disk is None and machine.gpus == ()
    assert (machine.cpu.flags_source, machine.cpu.model) == (
        "cpuinfo",
        "AMD EPYC 9755 128-Core Processor",
    )


def test_amd_gpus_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/drm/card1/device"
    device.mkdir(parents=True)
    for name, text in {
        "vendor": "0x1002",
        "device": "0x744c",
        "mem_info_vram_total": str(24 * GIB),
        "mem_info_vram_used": str(GIB),
        "numa_node": "-1",
    }.items():
        (device / name).write_text(text + "\n")
    (tmp_path / "sys/class/drm/card1-DP-1").mkdir()
    found = gpu.read(Tree(tmp_path))
    assert found == (Gpu(0, "AMD 0x744c", 24 * GIB, 23 * GIB, "sysfs", "amdgpu"),)


@pytest.fixture
def nvidia_tree(tmp_path: Path) -> Tree:
    for name, text in {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module",
        "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    tree = Tree(tmp_path)
    tree.live = True
    return tree


def test_nvidia_gpus_from_nvml(nvidia_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetDriverVersion": "570.124.06",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * GIB, free=140 * GIB),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:3B:00.0"),
        "nvmlDeviceGetName": "NVIDIA H200",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    expected = Gpu(0, "NVIDIA H200", 141 * GIB, 140 * GIB, "nvml", "570.124.06", "9.0", 1)
    assert gpu.read(nvidia_tree) == (expected,)


@pytest.mark.parametrize("failing", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_does_not_answer_is_no_gpu(
    nvidia_tree: Tree, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    import pynvml

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    for name in ("nvmlInit", "nvmlShutdown", "nvmlSystemGetDriverVersion"):
        monkeypatch.setattr(pynvml, name, lambda: "")
    monkeypatch.setattr(pynvml, failing, fail)
    assert gpu.read(nvidia_tree) == ()


def test_torch_is_asked_only_when_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        mem_get_info=lambda index: (3 * GIB, 4 * GIB),
        get_device_name=lambda index: "Radeon",
    )
    fake = SimpleNamespace(cuda=cuda, xpu=SimpleNamespace(), __spec__=object())
    monkeypatch.setitem(sys.modules, "torch", fake)
    tree = Tree(tmp_path)
    tree.live = True
    assert gpu.read(tree) == ()
    assert gpu.read(tree, torch=True) == (Gpu(0, "Radeon", 4 * GIB, 3 * GIB, "torch"),)


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    import shutil

    found = disk.read(tmp_path / "hub" / "models")
    assert found is not None and found.path == str(tmp_path / "hub" / "models")
    assert (found.total, found.problem) == (shutil.disk_usage(tmp_path).total, "")


def test_a_place_where_no_folder_can_be_is_no_place_for_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "nowhere")
    for there in (file, link):
        found = disk.read(there / "hub")
        assert found is not None and found.problem == f"{there} is not a folder"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    found = disk.read(tmp_path / "hub")
    assert found is not None and found.problem == f"{tmp_path} cannot be written to"
