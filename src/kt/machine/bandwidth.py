"""Measured read bandwidth per NUMA node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kt.machine import numa, probe
from kt.machine.facts import Node
from kt.machine.topology import CPU
from kt.machine.tree import Tree
from kt.units import GIB, KIB, MIB, parse_bytes

SECONDS = 1.5  # for all nodes together: 2 s at most with starting and stopping threads
PER_NODE = 0.8
SMALLEST, LARGEST = 256 * MIB, 2 * GIB


def measure(
    tree: Tree, nodes: Sequence[Node], cpus: Sequence[int], usable: int
) -> tuple[Node, ...]:
    """`nodes` with the bandwidth that the workers `cpus` of each reach, one node after the other.
    As they were where the probe was not built. Takes at most a quarter of `usable` bytes for a
    moment."""
    native = probe.load()
    if native is None or not cpus:
        return tuple(nodes)
    pools = numa.pools(nodes, cpus)
    seconds = min(PER_NODE, SECONDS / max(1, len(pools)))
    rates = {}
    for pool in pools:
        size = min(_buffer(tree, pool.cpus), usable // 4)
        rates[pool.node] = native.read_bandwidth(pool.cpus, size, seconds) or None
    return tuple(replace(node, bandwidth=rates.get(node.id)) for node in nodes)


def _buffer(tree: Tree, cpus: Sequence[int]) -> int:
    """Bytes to read: four times the last-level caches of `cpus`, so that little is found in
    them."""
    caches: dict[str, int] = {}
    for cpu in cpus:
        folder = f"{CPU}/cpu{cpu}/cache/index3"
        shared, size = (
            tree.text(f"{folder}/shared_cpu_list"),
            tree.text(f"{folder}/size"),
        )
        if shared and size:
            caches[shared] = parse_bytes(size)
    return max(SMALLEST, min(LARGEST, 4 * sum(caches.values()) or 512 * KIB * len(cpus)))
