"""NUMA nodes, and which of them workers and weights go to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kt.machine.facts import Node
from kt.machine.tree import Tree
from kt.units import KIB

NODES = "/sys/devices/system/node"
# A node's part of MemAvailable: what is free and what the kernel gives back on need.
AVAILABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
LOCAL = 10  # the kernel's distance of a node to itself


@dataclass(frozen=True)
class Pool:
    """Workers of one node. memory_node: where their memory lies, the node itself unless it has
    none."""

    node: int
    cpus: tuple[int, ...]
    memory_node: int


def read(
    tree: Tree, online: tuple[int, ...], cgroup_mems: tuple[int, ...] | None
) -> tuple[Node, ...]:
    """The nodes by id, which need not be consecutive. A kernel without NUMA has node 0 only."""
    ids = tree.numbered(NODES, "node")
    if len(ids) < 2:  # /proc/meminfo, because a single node's own file can miss hot-plugged memory
        return (_whole_machine(tree, online, *ids),)
    allowed = tree.ids_in("/proc/self/status", "Mems_allowed_list") or ids
    if cgroup_mems:
        allowed = tuple(i for i in allowed if i in cgroup_mems)
    return tuple(_node(tree, i, ids, i in allowed) for i in ids)


def _node(tree: Tree, node: int, ids: tuple[int, ...], allowed: bool) -> Node:
    folder = f"{NODES}/node{node}"
    lines = tree.text(f"{folder}/meminfo") or ""  # "Node 0 MemTotal:       24684084 kB"
    amounts = {m[1]: int(m[2]) * KIB for m in re.finditer(r"(\S+):\s+(\d+) kB", lines)}
    distances = [int(d) for d in (tree.text(f"{folder}/distance") or "").split()]
    return Node(
        id=node,
        cpus=tree.ids(f"{folder}/cpulist") or (),
        total=amounts.get("MemTotal", 0),
        available=sum(amounts.get(name, 0) for name in AVAILABLE),
        allowed=allowed,
        distances=tuple(zip(ids, distances, strict=False)),  # in the order of the ids
    )


def _whole_machine(tree: Tree, online: tuple[int, ...], node: int = 0) -> Node:
    amounts = tree.table("/proc/meminfo")
    total, available = (
        int(amounts.get(n, "0").split()[0]) * KIB for n in ("MemTotal", "MemAvailable")
    )
    return Node(node, online, total, available, allowed=True, distances=((node, LOCAL),))


def memory_node(nodes: Sequence[Node], node: Node) -> int:
    """The node's own id if it has memory that this process may use, else the nearest such node's
    (of equally near ones the first)."""
    with_memory = [n for n in nodes if n.total and n.allowed]
    distances = dict(node.distances) | {node.id: LOCAL}
    far = max(distances.values()) + 1
    nearest = min(with_memory, key=lambda n: distances.get(n.id, far), default=node)
    return nearest.id


def may_work(node: Node) -> bool:
    """Its CPUs may be workers: its memory is allowed, or it has none of its own to be refused."""
    return bool(node.cpus) and (node.allowed or not node.total)


def pools(nodes: Sequence[Node], cpus: Sequence[int]) -> tuple[Pool, ...]:
    """`cpus` by node, each with the node for its memory. A node without CPUs gets no pool."""
    pooled = ((node, tuple(cpu for cpu in cpus if cpu in node.cpus)) for node in nodes)
    return tuple(Pool(n.id, own, memory_node(nodes, n)) for n, own in pooled if own)


def memory_nodes(nodes: Sequence[Node]) -> frozenset[int]:
    """Nodes that weights may go to: allowed ones with CPUs, and the nearest of memory-less ones. A
    node without CPUs (a memory expander, say) is left out unless such a one needs it."""
    return frozenset(memory_node(nodes, node) for node in nodes if may_work(node))
