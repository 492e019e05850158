"""Physical cores with their SMT siblings, and fast and slow cores of hybrid CPUs."""

from __future__ import annotations

import re

from kt.machine.facts import Core
from kt.machine.tree import Tree

CPU = "/sys/devices/system/cpu"

# A core is slow below this share of the fastest core's figure. Favoured cores of one class differ
# by up to a tenth (Turbo Boost Max), classes by a quarter or more.
SLOW_BELOW = 0.8


def online(tree: Tree) -> tuple[int, ...]:
    """Online CPUs, from /proc/cpuinfo where /sys is not there."""
    listed = tree.ids(f"{CPU}/online") or tree.numbered(CPU, "cpu")
    if listed:
        return listed
    cpuinfo = tree.text("/proc/cpuinfo") or ""
    return tuple(int(n) for n in re.findall(r"^processor\s*:\s*(\d+)", cpuinfo, re.MULTILINE))


def cores(tree: Tree, cpus: tuple[int, ...]) -> tuple[Core, ...]:
    """The physical cores of the online `cpus`, ordered by their lowest CPU."""
    siblings: dict[tuple[int, ...], None] = {}
    for cpu in cpus:
        group = {cpu, *_siblings(tree, cpu)}  # the kernel lists online ones only
        siblings[tuple(sorted(group))] = None
    fast = _fast(tree, cpus)
    return tuple(Core(group, fast=group[0] in fast) for group in sorted(siblings))


def _siblings(tree: Tree, cpu: int) -> tuple[int, ...]:
    folder = f"{CPU}/cpu{cpu}/topology"
    # core_cpus_list is the newer name (Linux 5.3) of thread_siblings_list.
    return tree.ids(f"{folder}/core_cpus_list") or tree.ids(f"{folder}/thread_siblings_list") or ()


def _fast(tree: Tree, cpus: tuple[int, ...]) -> frozenset[int]:
    """The CPUs of the fast class: all of them, unless a source tells two classes apart."""
    performance = tree.ids("/sys/devices/cpu_core/cpus")
    if performance and tree.ids("/sys/devices/cpu_atom/cpus"):  # Intel hybrid: the core types
        return frozenset(performance)
    for figure in (_capacity, _frequency, _nominal):
        speeds = {cpu: figure(tree, cpu) or 0 for cpu in cpus}
        top = max(speeds.values(), default=0)
        if any(0 < speed < SLOW_BELOW * top for speed in speeds.values()):
            return frozenset(cpu for cpu, speed in speeds.items() if speed >= SLOW_BELOW * top)
    return frozenset(cpus)


def _capacity(tree: Tree, cpu: int) -> int | None:
    return tree.number(f"{CPU}/cpu{cpu}/cpu_capacity")


def _frequency(tree: Tree, cpu: int) -> int | None:
    return tree.number(f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq")


def _nominal(tree: Tree, cpu: int) -> int | None:
    # Not highest_perf: AMD ranks equal cores with it.
    return tree.number(f"{CPU}/cpu{cpu}/acpi_cppc/nominal_perf")
