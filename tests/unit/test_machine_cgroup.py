"""CPU quota, cpuset and memory limit, versions 1 and 2. The right values follow from the kernel's
documentation of cpu.max, cpu.cfs_quota_us, cpuset and memory.max."""

from __future__ import annotations

from pathlib import Path

import pytest

from kt.errors import UsageError
from kt.machine.facts import Machine
from kt.units import GIB, MIB
from tests.machines import captured, changed

V2 = {
    "/proc/self/cgroup": "0::/a/b\n",
    "/proc/self/mountinfo": (
        "24 1 0:22 / /proc rw,nosuid shared:12 - proc proc rw\n"
        "33 24 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    ),
}
V1 = {
    "/proc/self/cgroup": "11:memory:/a/b\n5:cpu,cpuacct:/a/b\n4:cpuset:/a/b\n1:name=systemd:/a/b\n",
    "/proc/self/mountinfo": (
        "35 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct\n"
        "36 31 0:34 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory\n"
        "37 31 0:35 / /sys/fs/cgroup/cpuset rw shared:17 - cgroup cgroup rw,cpuset\n"
    ),
}
CPU_V1 = "/sys/fs/cgroup/cpu,cpuacct"


def threads(machine: Machine) -> int:
    return len(machine.worker_cpus.value)


@pytest.mark.parametrize(
    ("cpu_max", "quota", "count"),
    [
        ("400000 100000", 4.0, 4),
        ("50000 100000", 0.5, 1),
        ("250000 100000", 2.5, 2),
        ("40000 10000", 4.0, 4),
        ("1600000 100000", 16.0, 8),
        ("max 100000", None, 8),
    ],
)
def test_cpu_max(tmp_path: Path, cpu_max: str, quota: float | None, count: int) -> None:
    machine = changed("eight_cores", tmp_path, V2 | {"/sys/fs/cgroup/a/b/cpu.max": cpu_max})
    assert machine.cgroup.quota == quota
    assert threads(machine) == count


def test_without_a_quota_the_affinity_mask_decides(tmp_path: Path) -> None:
    files = {
        "/sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "/proc/self/status": "Cpus_allowed_list:\t1-2,6\nMems_allowed_list:\t0\n",
    }
    machine = changed("eight_cores", tmp_path, V2 | files)
    assert machine.worker_cpus == ((1, 2, 6), "affinity mask 1-2,6")


@pytest.mark.parametrize(
    ("own", "parent", "count", "group"),
    [
        ("600000 100000", "200000 100000", 2, "/sys/fs/cgroup/a"),
        ("200000 100000", "600000 100000", 2, "/sys/fs/cgroup/a/b"),
        ("max 100000", "300000 100000", 3, "/sys/fs/cgroup/a"),
    ],
)
def test_the_strictest_parent_wins(
    tmp_path: Path, own: str, parent: str, count: int, group: str
) -> None:
    files = {"/sys/fs/cgroup/a/b/cpu.max": own, "/sys/fs/cgroup/a/cpu.max": parent}
    machine = changed("eight_cores", tmp_path, V2 | files)
    assert (threads(machine), machine.cgroup.quota_group) == (count, group)
    assert group in machine.worker_cpus.reason


@pytest.mark.parametrize(
    ("quota_us", "quota", "count"), [("-1", None, 8), ("300000", 3.0, 3), ("30000", 0.3, 1)]
)
def test_version_1_quota(tmp_path: Path, quota_us: str, quota: float | None, count: int) -> None:
    files = {
        f"{CPU_V1}/a/b/cpu.cfs_quota_us": quota_us,
        f"{CPU_V1}/a/b/cpu.cfs_period_us": "100000",
    }
    machine = changed("eight_cores", tmp_path, V1 | files)
    assert machine.cgroup.quota == quota
    assert threads(machine) == count


def test_version_1_quota_of_a_parent(tmp_path: Path) -> None:
    files = {
        f"{CPU_V1}/a/b/cpu.cfs_quota_us": "-1",
        f"{CPU_V1}/a/b/cpu.cfs_period_us": "100000",
        f"{CPU_V1}/a/cpu.cfs_quota_us": "500000",
        f"{CPU_V1}/a/cpu.cfs_period_us": "100000",
    }
    assert threads(changed("eight_cores", tmp_path, V1 | files)) == 5


def test_version_1_in_a_container_that_sees_its_own_group_only(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "5:cpu,cpuacct:/docker/0123\n",
        "/proc/self/mountinfo": (
            "35 31 0:33 /docker/0123 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        ),
        f"{CPU_V1}/cpu.cfs_quota_us": "200000",
        f"{CPU_V1}/cpu.cfs_period_us": "100000",
    }
    assert threads(changed("eight_cores", tmp_path, files)) == 2


def test_version_2_in_a_cgroup_namespace(tmp_path: Path) -> None:
    files = V2 | {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "300000 100000"}
    assert threads(changed("eight_cores", tmp_path, files)) == 3


def test_a_group_outside_the_namespace_falls_back_to_the_mount_point(tmp_path: Path) -> None:
    files = V2 | {"/proc/self/cgroup": "0::/../x\n", "/sys/fs/cgroup/cpu.max": "300000 100000"}
    assert threads(changed("eight_cores", tmp_path, files)) == 3


def test_a_mount_point_with_a_blank(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/a\n",
        "/proc/self/mountinfo": "33 24 0:29 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
        "/my groups/a/cpu.max": "200000 100000",
    }
    assert threads(changed("eight_cores", tmp_path, files)) == 2


def test_a_hybrid_system_keeps_its_limits_in_version_1(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": V1["/proc/self/cgroup"] + "0::/a/b\n",
        "/proc/self/mountinfo": V1["/proc/self/mountinfo"]
        + "38 31 0:36 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        f"{CPU_V1}/a/cpu.cfs_quota_us": "600000",
        f"{CPU_V1}/a/cpu.cfs_period_us": "100000",
    }
    assert threads(changed("eight_cores", tmp_path, files)) == 6


@pytest.mark.parametrize(
    "files",
    [
        V2 | {"/sys/fs/cgroup/a/b/cpuset.cpus.effective": "0-3\n"},
        V2 | {"/sys/fs/cgroup/a/cpuset.cpus.effective": "0-3\n"},
        V1 | {"/sys/fs/cgroup/cpuset/a/b/cpuset.cpus": "0-3\n"},
        V1
        | {
            "/sys/fs/cgroup/cpuset/a/b/cpuset.cpus": "\n",
            "/sys/fs/cgroup/cpuset/a/cpuset.cpus": "0-3\n",
        },
    ],
)
def test_cpuset(tmp_path: Path, files: dict[str, str]) -> None:
    machine = changed("eight_cores", tmp_path, files)
    assert machine.worker_cpus == ((0, 1, 2, 3), "cpuset 0-3")


def test_cpuset_and_quota_together(tmp_path: Path) -> None:
    files = {
        "/sys/fs/cgroup/a/b/cpuset.cpus.effective": "2-7\n",
        "/sys/fs/cgroup/a/cpu.max": "300000 100000",
    }
    machine = changed("eight_cores", tmp_path, V2 | files)
    assert machine.worker_cpus.value == (2, 3, 4)
    assert "cpuset 2-7" in machine.worker_cpus.reason and "quota of 3" in machine.worker_cpus.reason


def test_no_control_groups_at_all() -> None:
    machine = captured("eight_cores")
    assert machine.cgroup.quota is None and machine.memory.limit is None
    assert machine.worker_cpus == (tuple(range(8)), "every physical core")
    assert (machine.memory.total, machine.memory.usable) == (16 * GIB, 12 * GIB)


@pytest.mark.parametrize(
    ("files", "limit", "usable"),
    [
        ({"b/memory.max": str(4 * GIB)}, 4 * GIB, 4 * GIB),
        ({"b/memory.max": "max", "memory.max": str(GIB)}, GIB, GIB),
        ({"b/memory.max": "max"}, None, 12 * GIB),
        ({"b/memory.max": str(4 * GIB), "b/memory.high": str(2 * GIB)}, 2 * GIB, 2 * GIB),
        ({"b/memory.max": str(4 * GIB), "b/memory.current": str(GIB)}, 4 * GIB, 3 * GIB),
        ({"b/memory.max": str(64 * GIB)}, 64 * GIB, 12 * GIB),
        # A limit that is larger but nearly used up leaves less than a smaller one.
        (
            {
                "b/memory.max": str(4 * GIB),
                "memory.max": str(8 * GIB),
                "memory.current": str(7 * GIB),
            },
            4 * GIB,
            GIB,
        ),
        # Cached files are given back.
        (
            {
                "b/memory.max": str(4 * GIB),
                "b/memory.current": str(3 * GIB),
                "b/memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB}\n",
            },
            4 * GIB,
            3 * GIB,
        ),
    ],
)
def test_memory_limit(
    tmp_path: Path, files: dict[str, str], limit: int | None, usable: int
) -> None:
    placed = {f"/sys/fs/cgroup/a/{name}": text for name, text in files.items()}
    machine = changed("eight_cores", tmp_path, V2 | placed)
    assert (machine.memory.limit, machine.memory.usable) == (limit, usable)


@pytest.mark.parametrize(
    ("limit_text", "limit", "usable"),
    [("9223372036854771712", None, 12 * GIB), (str(2 * GIB), 2 * GIB, 2 * GIB - 256 * MIB)],
)
def test_version_1_memory_limit(
    tmp_path: Path, limit_text: str, limit: int | None, usable: int
) -> None:
    folder = "/sys/fs/cgroup/memory/a/b"
    files = {
        f"{folder}/memory.limit_in_bytes": limit_text,
        f"{folder}/memory.usage_in_bytes": str(GIB),
        f"{folder}/memory.stat": f"inactive_file 0\ntotal_inactive_file {768 * MIB}\n",
    }
    machine = changed("eight_cores", tmp_path, V1 | files)
    assert (machine.memory.limit, machine.memory.usable) == (limit, usable)


@pytest.mark.parametrize(("wanted", "count"), [("3", 3), ("8", 8), ("1", 1)])
def test_kt_threads_caps(monkeypatch: pytest.MonkeyPatch, wanted: str, count: int) -> None:
    monkeypatch.setenv("KT_THREADS", wanted)
    machine = captured("eight_cores")
    assert threads(machine) == count
    assert (f"KT_THREADS={wanted}" in machine.worker_cpus.reason) == (count < 8)


def test_kt_threads_beyond_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_THREADS", "1000")
    with pytest.raises(UsageError, match="KT_THREADS=1000: this machine has 1 to 8 for kt"):
        captured("eight_cores")


def test_a_malformed_kt_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_THREADS", "many")
    with pytest.raises(UsageError, match="KT_THREADS='many'"):
        captured("eight_cores")


@pytest.mark.parametrize(
    ("name", "taken", "option"),
    [("address space", "VmSize", "ulimit -v"), ("data size", "VmData", "ulimit -d")],
)
def test_the_processs_own_limits(tmp_path: Path, name: str, taken: str, option: str) -> None:
    limits = (
        f"Max cpu time   unlimited   unlimited  seconds\nMax {name}   {3 * GIB}  unlimited bytes"
    )
    files = {
        "/proc/self/limits": limits,
        "/proc/self/status": f"Name:\tkt\n{taken}:\t  {GIB >> 10} kB\n",
    }
    memory = changed("eight_cores", tmp_path, files).memory
    assert memory.usable == 2 * GIB
    assert option in memory.usable_reason
