"""Main memory: what there is, what the control groups leave, and what planning may use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kt.machine import numa
from kt.machine.facts import Cgroup, Memory, Node
from kt.machine.tree import Tree
from kt.units import KIB, Choice

HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"


def read(tree: Tree, cgroup: Cgroup, nodes: Sequence[Node]) -> Memory:
    """Amounts from /proc/meminfo, `cgroup` and `nodes`."""
    info = tree.table("/proc/meminfo")
    total = _kib(info, "MemTotal")
    available = _kib(info, "MemAvailable") if "MemAvailable" in info else _kib(info, "MemFree")
    usable = _usable(available, cgroup, nodes, _process_limits(tree))
    mode = re.search(r"\[(\w+)\]", tree.text(HUGE) or "")
    return Memory(
        total=total,
        available=available,
        limit=cgroup.memory_limit,
        usable=usable.value,
        usable_reason=usable.reason,
        transparent_huge_pages=mode[1] if mode else "",
        huge_page_size=_kib(info, "Hugepagesize"),
        huge_pages_total=int(info.get("HugePages_Total", "0")),
        huge_pages_free=max(
            0,
            int(info.get("HugePages_Free", "0")) - int(info.get("HugePages_Rsvd", "0")),
        ),
        swap_total=_kib(info, "SwapTotal"),
    )


def _kib(info: dict[str, str], key: str) -> int:
    return int(info.get(key, "0").split()[0]) * KIB


def _process_limits(tree: Tree) -> list[Choice[int]]:
    """What the process's own limits leave it; maps of files count among the address space, too."""
    limits, status = tree.text("/proc/self/limits") or "", tree.table("/proc/self/status")
    found = []
    for name, taken, option in (("address space", "VmSize", "-v"), ("data size", "VmData", "-d")):
        match = re.search(rf"^Max {name}\s+(\d+)\s", limits, re.MULTILINE)
        if match:
            left = max(0, int(match[1]) - _kib(status, taken))
            found.append(Choice(left, f"what the limit of the {name} (ulimit {option}) leaves"))
    return found


def _usable(
    available: int, cgroup: Cgroup, nodes: Sequence[Node], limits: Sequence[Choice[int]] = ()
) -> Choice[int]:
    """The least of what the machine has available, what the control groups and the process's limits
    leave, and what is on the nodes that weights may go to. Swap does not count: weights are read at
    every token."""
    bounds = [Choice(available, "all memory that is available"), *limits]
    if cgroup.memory_free is not None:
        group = f" of {cgroup.memory_group}" if cgroup.memory_group else ""
        bounds.append(Choice(cgroup.memory_free, f"what the memory limit{group} leaves"))
    chosen = numa.memory_nodes(nodes)
    left_out = [n for n in nodes if n.total and n.id not in chosen]
    if chosen and left_out:
        free = sum(n.available for n in nodes if n.id in chosen)
        names = ", ".join(str(n.id) for n in left_out)
        bounds.append(
            Choice(free, f"without NUMA node {names}, which is not allowed or has no CPUs")
        )
    return min(bounds, key=lambda bound: bound.value)
