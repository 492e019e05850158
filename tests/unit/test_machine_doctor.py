"""kt doctor: its verdicts, output, imports and speed, and CPUs that it cannot serve."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kt.cli.doctor import Report
from kt.cli.verdicts import Line, judge
from kt.kernels.variants import VARIANTS, select
from kt.machine.facts import Disk, Gpu, Machine
from kt.units import GIB
from tests.machines import captured, changed

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "tokenizers",
    "huggingface_hub",
    "fastapi",
    "openai",
    "cpuinfo",
)


def verdicts(machine: Machine) -> dict[str, Line]:
    lines = judge(machine, select(machine.cpu, None))
    assert all(line.advice for line in lines if line.verdict != "ok")
    return {line.name: line for line in lines if line.verdict != "ok"}


def on_cpuid(machine: Machine) -> Machine:
    """A replayed machine as if it were this one, without the warning that a replay gets."""
    return replace(machine, cpu=replace(machine.cpu, flags_source="cpuid"))


FINE = on_cpuid(captured("eight_cores"))


def with_memory(**amounts: Any) -> Machine:
    return replace(FINE, memory=replace(FINE.memory, **amounts))


def with_node(**measured: Any) -> Machine:
    (node,) = FINE.nodes
    return replace(FINE, nodes=(replace(node, **measured),))


def test_a_machine_without_trouble_has_no_warning() -> None:
    assert verdicts(FINE) == {}
    assert verdicts(on_cpuid(captured("sapphire_rapids"))) == {}


@pytest.mark.parametrize(
    ("machine", "name", "verdict"),
    [
        (captured("eight_cores"), "instructions", "warn"),
        (
            replace(FINE, cpu=replace(FINE.cpu, flags_disputed=frozenset({"avx2"}))),
            "instructions",
            "warn",
        ),
        (on_cpuid(captured("sapphire_rapids_refused")), "AMX tiles", "warn"),
        (replace(FINE, cgroup=replace(FINE.cgroup, quota=0.5)), "CPU quota", "warn"),
        (replace(FINE, cgroup=replace(FINE.cgroup, quota=2.5)), "CPU quota", "warn"),
        (with_memory(available=3 * GIB), "main memory", "warn"),
        (with_memory(limit=2 * GIB), "limit", "warn"),
        (with_memory(usable=100 << 20), "usable by kt", "bad"),
        (with_memory(transparent_huge_pages="never"), "huge pages", "warn"),
        (with_memory(transparent_huge_pages=""), "huge pages", "warn"),
        (with_memory(huge_pages_total=2048, huge_pages_free=2048), "reserved pages", "warn"),
        (replace(FINE, disk=Disk("/d", 100 * GIB, 5 * GIB)), "downloads", "warn"),
        (replace(FINE, disk=Disk("/d", 100 * GIB, 1000)), "downloads", "bad"),
        (replace(FINE, disk=Disk("/d", 1000 * GIB, 500 * GIB, "a file")), "downloads", "bad"),
        (replace(FINE, gpus=(Gpu(0, "X", 8 * GIB, GIB, "nvml"),)), "gpu 0", "warn"),
        (on_cpuid(captured("numa_not_allowed")), "node 0", "warn"),
        (with_node(bandwidth=1e10, others=0.4), "node 0", "warn"),
    ],
)
def test_one_trouble_is_one_warning(machine: Machine, name: str, verdict: str) -> None:
    found = verdicts(machine)
    assert {line.name: line.verdict for line in found.values()} == {name: verdict}


@pytest.mark.parametrize(
    "machine",
    [
        replace(FINE, cgroup=replace(FINE.cgroup, quota=4.0)),
        with_memory(limit=12 * GIB),
        with_memory(limit=64 * GIB),
        with_memory(transparent_huge_pages="always"),
        with_memory(swap_total=8 * GIB),
        replace(FINE, disk=Disk("/d", 1000 * GIB, 500 * GIB)),
        on_cpuid(captured("numa_cpuless")),
        on_cpuid(captured("raptor_lake")),
        with_node(bandwidth=1e10, others=0.05),
        with_node(bandwidth=1e10),
    ],
)
def test_what_is_fine_is_no_warning(machine: Machine) -> None:
    assert verdicts(machine) == {}


def test_a_node_without_memory_names_the_nearest() -> None:
    found = verdicts(on_cpuid(captured("numa_memoryless")))
    assert set(found) == {"node 1", "node 3"}
    assert "node 0" in found["node 1"].advice and "node 2" in found["node 3"].advice


def test_the_refused_quota_says_where_it_is_set(tmp_path: Path) -> None:
    files = {"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/cpu.max": "50000 100000"}
    line = verdicts(on_cpuid(changed("eight_cores", tmp_path, files)))["CPU quota"]
    assert line.value == "0.5 CPUs in /sys/fs/cgroup/a"


def kt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kt", *arguments],
        capture_output=True,
        text=True,
        env={**clean_environment(), **environment},
        timeout=60,
    )


def clean_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KT_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_the_report() -> None:
    done = kt("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    sections = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert sections[:-1] == ["CPU", "Threads", "Memory", "NUMA", "GPU", "Disk"]
    assert "GB/s" in done.stdout and "kernel variant" in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_a_bandwidth_that_others_have_a_share_in_is_a_warning() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(busy) for _ in os.sched_getaffinity(0)]
    try:
        done = kt("doctor", "--json")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    report = json.loads(done.stdout)
    machine = Machine.from_json(report["machine"])
    taken = sum(len(node.cpus) * (node.others or 0) for node in machine.nodes)
    allowed = min(len(hogs), machine.cgroup.quota or len(hogs))
    assert taken > allowed / 4
    lines = [line for line in report["verdicts"] if "GB/s while other programs" in line["value"]]
    disturbed = [node for node in machine.nodes if (node.others or 0) > 0.1]
    assert [line["name"] for line in lines] == [f"node {node.id}" for node in disturbed]
    assert all(line["verdict"] == "warn" and "again" in line["advice"] for line in lines)


def test_the_json_report() -> None:
    done = kt("doctor", "--json", "--no-bandwidth", KT_VARIANT="avx2", KT_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report) == ["schema", "choices", "verdicts", "machine"]
    assert report["schema"] == 1
    assert report["choices"]["variant"]["value"] == "avx2"
    assert "KT_VARIANT" in report["choices"]["variant"]["reason"]
    assert report["choices"]["threads"]["value"] == 1
    assert {"section", "name", "value", "verdict", "advice"} == set(report["verdicts"][0])
    machine = Machine.from_json(report["machine"])
    assert machine.cpu.flags_source == "cpuid"
    assert machine.nodes[0].bandwidth is None


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"KT_VARIANT": "avx1024"}, "KT_VARIANT='avx1024'"),
        ({"KT_THREADS": "0"}, "KT_THREADS='0'"),
    ],
)
def test_a_wrong_environment_is_refused(environment: dict[str, str], says: str) -> None:
    done = kt("doctor", **environment)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["doctor"], ["--help"]])
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    code = (
        "import sys; from kt.cli.app import run; code = run(sys.argv[1:]); "
        "print('modules:', *sorted({name.partition('.')[0] for name in sys.modules})); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=True,
        timeout=60,
    )
    modules = done.stdout.rpartition("modules:")[2].split()
    assert "typer" in modules
    assert not set(HEAVY) & set(modules)


def test_without_the_bandwidth_test_it_takes_at_most_twice_the_time_of_help() -> None:
    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        assert kt(*arguments).returncode == 0
        return time.perf_counter() - start

    pairs = [(seconds("--help"), seconds("doctor", "--no-bandwidth")) for _ in range(5)]
    shortest_help, shortest_doctor = (min(times) for times in zip(*pairs, strict=True))
    assert shortest_doctor <= 2 * shortest_help


@pytest.fixture
def qemu() -> str:
    found = shutil.which("qemu-x86_64")
    if found is None and os.environ.get("CI"):
        pytest.fail("qemu-x86_64 is not installed (Debian: qemu-user)")
    if found is None:
        pytest.skip("qemu-x86_64 is not installed (Debian: qemu-user)")
    return found


def emulated(qemu: str, model: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`kt doctor` on an emulated CPU. Python finds its virtual environment by the name it was
    started with, which qemu does not keep, so the paths of this process go along."""
    python = os.path.realpath(sys.executable)
    return subprocess.run(
        [qemu, "-cpu", model, python, "-m", "kt", "doctor", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=120,
    )


@pytest.mark.qemu
def test_an_emulated_haswell_gets_avx2(qemu: str) -> None:
    done = emulated(qemu, "Haswell", "--json", "--no-bandwidth")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["choices"]["variant"]["value"] == "avx2"
    assert report["machine"]["cpu"]["flags"] == ["avx", "avx2", "f16c", "fma", "sse4_2"]
    assert "Haswell" in report["machine"]["cpu"]["model"]


@pytest.mark.qemu
def test_an_emulated_nehalem_is_refused_in_one_sentence(qemu: str) -> None:
    done = emulated(qemu, "Nehalem")
    assert done.returncode == 3 and done.stdout == ""
    (said,) = [line for line in done.stderr.splitlines() if not line.startswith("qemu-x86_64:")]
    assert said.startswith("error: kt needs a CPU with AVX2") and "Nehalem" in said


@pytest.mark.qemu
def test_an_emulated_cpu_with_avx_but_not_avx2_is_refused(qemu: str) -> None:
    assert emulated(qemu, "SandyBridge", "--no-bandwidth").returncode == 3


@pytest.mark.qemu
def test_the_bandwidth_test_runs_on_the_oldest_cpu(qemu: str) -> None:
    """The probe holds baseline instructions only."""
    code = (
        "from kt.machine import probe; native = probe.load(); "
        "print(sorted(native.flags()), native.read_bandwidth([0], 4 << 20, 0.1) > 0)"
    )
    done = subprocess.run(
        [qemu, "-cpu", "qemu64,-svm", os.path.realpath(sys.executable), "-c", code],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
    )
    assert done.stdout == "[] True\n", done.stderr


def test_every_field_of_the_json_is_documented() -> None:
    words = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`\n]+)`", documentation()))))
    gpu, disk = Gpu(0, "X", 8 * GIB, GIB, "nvml"), Disk("/d", 100 * GIB, 5 * GIB)
    machine = replace(FINE, gpus=(gpu,), disk=disk)
    variant = select(machine.cpu, None)
    report = Report(machine, variant, judge(machine, variant)).to_json()
    assert keys(report) <= words


def test_the_documented_table_of_variants_is_the_codes() -> None:
    rows = re.findall(r"^\| `(a[a-z0-9_]+)` \| (.*) \|$", documentation(), re.MULTILINE)
    assert [name for name, _ in rows] == [variant.name for variant in VARIANTS]
    below: set[str] = set()
    for (_, needs), variant in zip(reversed(rows), reversed(VARIANTS), strict=True):
        below |= set(re.findall(r"[a-z0-9_]+", needs)) - {"and", "tile", "permission"}
        assert below == variant.flags
        assert ("permission" in needs) == variant.tiles


def documentation() -> str:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(keys(item) for item in value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()
