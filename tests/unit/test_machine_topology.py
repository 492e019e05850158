"""Physical and SMT cores, fast and slow ones, and NUMA nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kt.machine import numa
from kt.machine.numa import Pool
from kt.units import GIB
from tests.machines import captured, changed

CPU = "/sys/devices/system/cpu"


def test_eight_fast_cores_with_smt_and_twelve_slow_ones() -> None:
    machine = captured("raptor_lake")
    assert machine.worker_cpus.value == (0, 2, 4, 6, 8, 10, 12, 14)
    assert machine.worker_cpus.reason == "fast cores only; one per SMT pair"
    assert sum(core.fast for core in machine.cpu.cores) == 8
    assert len(machine.cpu.cores) == 20


def test_siblings_numbered_far_apart() -> None:
    machine = captured("cascade_lake")  # cores (0, 2) and (1, 3)
    assert [core.cpus for core in machine.cpu.cores] == [(0, 2), (1, 3)]
    assert machine.worker_cpus == ((0, 1), "one per SMT pair")


def test_without_smt_every_core_works() -> None:
    assert captured("eight_cores").worker_cpus.value == tuple(range(8))


def test_a_mask_with_one_sibling_of_each_core_keeps_both_cores(tmp_path: Path) -> None:
    status = {"/proc/self/status": "Cpus_allowed_list:\t1-2\nMems_allowed_list:\t0\n"}
    assert changed("cascade_lake", tmp_path, status).worker_cpus.value == (1, 2)


def test_a_mask_with_both_siblings_of_one_core_gives_one_worker(tmp_path: Path) -> None:
    status = {"/proc/self/status": "Cpus_allowed_list:\t0,2\nMems_allowed_list:\t0\n"}
    assert changed("cascade_lake", tmp_path, status).worker_cpus.value == (0,)


def test_slow_cores_work_where_no_others_are_left(tmp_path: Path) -> None:
    status = {"/proc/self/status": "Cpus_allowed_list:\t16-19\nMems_allowed_list:\t0\n"}
    assert changed("raptor_lake", tmp_path, status).worker_cpus.value == (16, 17, 18, 19)


def test_an_offline_cpu_is_no_worker(tmp_path: Path) -> None:
    files = {f"{CPU}/online": "0-2,4-7\n"}
    assert changed("eight_cores", tmp_path, files).worker_cpus.value == (0, 1, 2, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("name", "figures", "workers"),
    [
        ("cpu_capacity", [1024] * 4 + [620] * 4, (0, 1, 2, 3)),
        ("cpu_capacity", [620] * 4 + [1024] * 4, (4, 5, 6, 7)),
        ("cpu_capacity", [1024, 1009, 1009, 985, 985, 985, 985, 985], tuple(range(8))),
        ("cpufreq/cpuinfo_max_freq", [5_100_000] * 4 + [3_300_000] * 4, (0, 1, 2, 3)),
        ("cpufreq/cpuinfo_max_freq", [5_700_000, 5_700_000, *[5_250_000] * 6], tuple(range(8))),
        ("acpi_cppc/nominal_perf", [200] * 6 + [120] * 2, (0, 1, 2, 3, 4, 5)),
        # AMD's ranking of equal cores.
        ("acpi_cppc/highest_perf", [236, 231, 226, 211, 201, 191, 176, 166], tuple(range(8))),
    ],
)
def test_core_classes(
    tmp_path: Path, name: str, figures: list[int], workers: tuple[int, ...]
) -> None:
    files = {f"{CPU}/cpu{cpu}/{name}": f"{figure}\n" for cpu, figure in enumerate(figures)}
    assert changed("eight_cores", tmp_path, files).worker_cpus.value == workers


def test_equal_capacities_do_not_hide_different_frequencies(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu{cpu}/cpu_capacity": "1024\n" for cpu in range(8)}
    files |= {
        f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq": "5000000\n" if cpu < 2 else "3300000\n"
        for cpu in range(8)
    }
    assert changed("eight_cores", tmp_path, files).worker_cpus.value == (0, 1)


def test_the_older_name_of_the_sibling_list(tmp_path: Path) -> None:
    files = {}
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = ""
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}\n"
    assert changed("eight_cores", tmp_path, files).worker_cpus.value == (0, 1, 2, 3)


def test_without_sys_the_processors_are_counted(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t: avx2\n\nprocessor\t: 1\n")
    from kt.machine.survey import survey

    assert survey(tmp_path).worker_cpus.value == (0, 1)


def test_node_ids_with_a_gap() -> None:
    machine = captured("numa_0_and_4")
    assert [node.id for node in machine.nodes] == [0, 4]
    assert machine.nodes[1].distances == ((0, 40), (4, 10))
    assert machine.nodes[1].total == 16 * GIB
    assert numa.pools(machine.nodes, machine.worker_cpus.value) == (
        Pool(0, (0, 1, 2, 3), 0),
        Pool(4, (4, 5, 6, 7), 4),
    )


def test_a_node_without_memory_uses_the_nearest_by_distance() -> None:
    machine = captured("numa_memoryless")
    pools = numa.pools(machine.nodes, machine.worker_cpus.value)
    assert [(pool.node, pool.memory_node) for pool in pools] == [(0, 0), (1, 0), (2, 2), (3, 2)]
    assert machine.worker_cpus.value == tuple(range(8))
    assert machine.memory.usable_reason == "all memory that is available"


def test_a_node_without_cpus_is_unused() -> None:
    machine = captured("numa_cpuless")
    pools = numa.pools(machine.nodes, machine.worker_cpus.value)
    assert [pool.node for pool in pools] == [0, 1]
    assert numa.memory_nodes(machine.nodes) == {0, 1}
    # Of each 16 GiB node half is free and a quarter cached; the 64 GiB node does not count.
    assert machine.memory.usable == 24 * GIB


def test_a_node_without_cpus_is_used_where_it_has_the_only_memory(tmp_path: Path) -> None:
    empty = "Node {} MemTotal: 0 kB\nNode {} MemFree: 0 kB\n"
    nodes = "/sys/devices/system/node"
    files = {f"{nodes}/node{i}/meminfo": empty.format(i, i) for i in (0, 1)}
    machine = changed("numa_cpuless", tmp_path, files)
    pools = numa.pools(machine.nodes, machine.worker_cpus.value)
    assert [(pool.node, pool.memory_node) for pool in pools] == [(0, 2), (1, 2)]


def test_a_node_outside_mems_allowed_gets_no_pool() -> None:
    machine = captured("numa_not_allowed")
    assert [node.allowed for node in machine.nodes] == [False, True]
    assert machine.worker_cpus == ((4, 5, 6, 7), "NUMA nodes in Mems_allowed only")
    assert numa.pools(machine.nodes, machine.worker_cpus.value) == (Pool(1, (4, 5, 6, 7), 1),)
    assert machine.memory.usable == 12 * GIB


def test_cpuset_mems_narrow_the_nodes(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/a\n",
        "/sys/fs/cgroup/a/cpuset.mems.effective": "4\n",
    }
    machine = changed("numa_0_and_4", tmp_path, files)
    assert [node.allowed for node in machine.nodes] == [False, True]
    assert machine.worker_cpus.value == (4, 5, 6, 7)


def test_cpus_of_a_refused_node_work_where_no_others_are_left(tmp_path: Path) -> None:
    status = {"/proc/self/status": "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t1\n"}
    machine = changed("numa_not_allowed", tmp_path, status)
    assert numa.pools(machine.nodes, machine.worker_cpus.value) == (Pool(0, (0, 1), 1),)


def test_a_quota_takes_its_cores_from_one_node(tmp_path: Path) -> None:
    nodes = "/sys/devices/system/node"
    files = {
        f"{nodes}/node0/cpulist": "0,2,4,6\n",
        f"{nodes}/node4/cpulist": "1,3,5,7\n",
        "/proc/self/cgroup": "0::/a\n",
        "/sys/fs/cgroup/a/cpu.max": "300000 100000\n",
    }
    assert changed("numa_0_and_4", tmp_path, files).worker_cpus.value == (0, 2, 4)


def test_a_machine_without_numa_is_node_0() -> None:
    (node,) = captured("eight_cores").nodes
    assert (node.id, node.cpus, node.total) == (0, tuple(range(8)), 16 * GIB)
