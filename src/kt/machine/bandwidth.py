"""Measured read bandwidth per NUMA node."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from kt.machine import numa, probe
from kt.machine.facts import Node
from kt.machine.topology import CPU
from kt.machine.tree import Tree
from kt.units import GIB, KIB, MIB, parse_bytes

SECONDS = 1.5  # for all nodes together: 2 s at most with starting and stopping threads
PER_NODE = 0.8
WORK = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal: all but idle and iowait
SMALLEST, LARGEST = 256 * MIB, 2 * GIB


def measure(
    tree: Tree, nodes: Sequence[Node], cpus: Sequence[int], usable: int
) -> tuple[Node, ...]:
    """`nodes` with the bandwidth that the workers `cpus` of each reach, one node after the other,
    and what other programs took of the node's CPUs meanwhile. As they were where the probe was not
    built. Takes at most a quarter of `usable` bytes for a moment."""
    native = probe.load()
    if native is None or not cpus:
        return tuple(nodes)
    pools = numa.pools(nodes, cpus)
    seconds = min(PER_NODE, SECONDS / max(1, len(pools)))
    found = {node.id: node for node in nodes}
    for pool in pools:
        node = found[pool.node]
        size = min(_buffer(tree, pool.cpus), usable // 4)
        watch = _Watch(tree, node.cpus)
        rate = native.read_bandwidth(pool.cpus, size, seconds) or None
        found[pool.node] = replace(node, bandwidth=rate, others=watch.others() if rate else None)
    return tuple(found.values())


class _Watch:
    """Looks at what other processes do on `cpus` from now on."""

    def __init__(self, tree: Tree, cpus: Sequence[int]) -> None:
        self._tree, self._cpus = tree, cpus
        self._before = self._read()

    def others(self) -> float | None:
        """Their part of the CPUs' time, 0 to 1; None where the kernel does not tell."""
        busy, own, now = (b - a for a, b in zip(self._before, self._read(), strict=True))
        if not busy > 0:  # nan, too
            return None
        return min(1.0, max(0.0, busy - own) / (now * len(self._cpus)))

    def _read(self) -> tuple[float, float, float]:
        """Seconds: for which all the CPUs have worked, this process has, and the clock."""
        lines = self._tree.table("/proc/stat")
        ticks = [lines.get(f"cpu{cpu}", "").split() for cpu in self._cpus]
        if not all(len(line) > max(WORK) for line in ticks):
            return math.nan, 0.0, 0.0
        busy = sum(int(line[column]) for line in ticks for column in WORK)
        return busy / os.sysconf("SC_CLK_TCK"), time.process_time(), time.monotonic()


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
