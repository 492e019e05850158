"""The native probe on this machine."""

from __future__ import annotations

import ast
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cffi import FFI

from kt.machine import bandwidth, cpu, probe, probe_abi
from kt.machine.probe import Probe
from kt.machine.survey import survey
from kt.machine.tree import Tree
from kt.units import MIB

HEADER = Path(__file__).parents[2] / "native" / "probe" / "probe.h"


@pytest.fixture
def native() -> Probe:
    loaded = probe.load()
    assert loaded is not None, f"{probe.LIBRARY} is not built"
    return loaded


def test_the_abi_module_is_what_cffi_makes_of_the_header(tmp_path: Path) -> None:
    ffi = FFI()
    ffi.cdef(re.sub(r"^#.*$", "", HEADER.read_text(), flags=re.MULTILINE))
    ffi.set_source(probe_abi.__name__, None)
    ffi.emit_python_code(str(tmp_path / "fresh.py"))
    fresh = ast.parse((tmp_path / "fresh.py").read_text())
    kept = ast.parse(Path(probe_abi.__file__).read_text())
    assert [ast.dump(node) for node in kept.body[1:]] == [ast.dump(node) for node in fresh.body]


def test_the_flags_are_those_that_python_knows_in_the_same_order(native: Probe) -> None:
    assert native.names() == cpu.FLAGS


def test_the_flags_are_those_that_the_kernel_lists(native: Probe) -> None:
    listed = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert listed is not None
    assert native.flags() == set(listed[1].split()) & set(cpu.FLAGS)


def test_vendor_and_model_are_the_kernels(native: Probe) -> None:
    text = Path("/proc/cpuinfo").read_text()
    for pattern, value in (
        (r"vendor_id\s*: (.*)", native.vendor()),
        (r"model name\s*: (.*)", native.model()),
    ):
        listed = re.search(pattern, text)
        assert listed is not None and " ".join(listed[1].split()) == value


def test_amx_is_permitted_only_where_there_is_amx(native: Probe) -> None:
    if native.amx_permission():
        assert "amx_tile" in native.flags()
    assert survey().cpu.amx_permitted == native.amx_permission()


def test_read_bandwidth_is_measured_in_time(native: Probe) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    start = time.monotonic()
    rate = native.read_bandwidth(cpus, 64 * MIB, 0.2)
    assert time.monotonic() - start < 1.0
    assert 1e8 < rate < 1e13
    assert os.sched_getaffinity(0) == set(cpus)  # the caller is not pinned


@pytest.mark.parametrize(
    ("cpus", "size", "seconds"), [([], 1 << 20, 0.1), ([0], 0, 0.1), ([0], 1 << 20, 0)]
)
def test_nothing_to_measure_is_zero(
    native: Probe, cpus: list[int], size: int, seconds: float
) -> None:
    assert native.read_bandwidth(cpus, size, seconds) == 0


def test_a_cpu_that_does_not_exist_is_not_fatal(native: Probe) -> None:
    assert native.read_bandwidth([4000], 4 * MIB, 0.05) > 0


def test_the_survey_measures_every_node_with_workers() -> None:
    start = time.monotonic()
    machine = survey(bandwidth=True)
    assert time.monotonic() - start < 2.5
    workers = set(machine.worker_cpus.value)
    for node in machine.nodes:
        assert (node.bandwidth is not None) == bool(workers & set(node.cpus))


def stat(**ticks: int) -> str:
    """/proc/stat of two CPUs: busy ones by name of what they did, idle and iowait beside."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")
    line = " ".join(str(ticks.get(name, 0)) for name in names)
    return f"cpu  {line} 0\ncpu0 {line} 0\ncpu1 {' '.join('0' * len(names))} 0\nintr 1\n"


@pytest.mark.parametrize(
    ("after", "others"),
    [
        ({}, 0.0),
        ({"idle": 900, "iowait": 900, "guest": 90}, 0.0),
        ({"user": 10, "nice": 10, "system": 10, "irq": 10, "softirq": 5, "steal": 5}, 0.25),
        ({"user": 400}, 1.0),
    ],
)
def test_what_others_take_meanwhile(
    after: dict[str, int], others: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A second of two CPUs, of which this process has half of one."""
    (tmp_path / "proc").mkdir()
    at = tmp_path / "proc/stat"
    at.write_text(stat(user=1000))
    own, clock = iter((5.0, 5.5)), iter((7.0, 8.0))
    times = SimpleNamespace(process_time=lambda: next(own), monotonic=lambda: next(clock))
    monkeypatch.setattr(bandwidth, "time", times)
    monkeypatch.setattr(bandwidth, "os", SimpleNamespace(sysconf={"SC_CLK_TCK": 100}.__getitem__))
    watch = bandwidth._Watch(Tree(tmp_path), (0, 1))
    at.write_text(stat(**{**after, "user": 1050 + after.get("user", 0)}))
    assert watch.others() == others


def test_where_the_kernel_does_not_tell_of_others(tmp_path: Path) -> None:
    watch = bandwidth._Watch(Tree(tmp_path), (0, 1))
    assert watch.others() is None


def test_without_the_library_the_kernels_flags_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "LIBRARY", tmp_path / "none.so")
    probe.load.cache_clear()
    try:
        machine = survey(bandwidth=True)
    finally:
        probe.load.cache_clear()
    assert machine.cpu.flags_source == "cpuinfo"
    assert machine.cpu.flags and all(node.bandwidth is None for node in machine.nodes)
