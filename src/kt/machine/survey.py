"""The survey: one Machine, from the running machine or from a captured tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kt import settings
from kt.machine import bandwidth as read_bandwidth
from kt.machine import cgroup, cpu, disk, gpu, memory, numa, workers
from kt.machine.facts import Machine
from kt.machine.tree import Tree


def survey(
    root: Path = Path("/"),
    *,
    bandwidth: bool = False,
    gpus: bool = True,
    torch: bool = False,
) -> Machine:
    """The machine as this process may use it, in milliseconds.

    root: "/", or a folder with captured /proc and /sys files; then CPUID, NVML, disks and bandwidth
    are left out. bandwidth: measure it, at most 2 s more. gpus: look for accelerators. torch: let
    torch look too (seconds). Raises UsageError for a malformed KT_THREADS.
    """
    wanted = settings.load()
    tree = Tree(root)
    processors = cpu.read(tree)
    groups = cgroup.read(tree)
    online = tuple(sorted(c for core in processors.cores for c in core.cpus))
    nodes = numa.read(tree, online, groups.mems)
    machine = Machine(
        kernel=tree.text("/proc/sys/kernel/osrelease") or "",
        cpu=processors,
        cgroup=groups,
        worker_cpus=workers.choose(processors, groups, nodes, wanted.threads),
        memory=memory.read(tree, groups, nodes),
        nodes=nodes,
        gpus=gpu.read(tree, torch=torch) if gpus else (),
        disk=disk.read(wanted.models) if tree.live else None,
    )
    return measured(machine) if bandwidth and tree.live else machine


def measured(machine: Machine) -> Machine:
    """`machine`, which must be the running one, with the read bandwidth of its nodes."""
    tree, cpus = Tree(Path("/")), machine.worker_cpus.value
    nodes = read_bandwidth.measure(tree, machine.nodes, cpus, machine.memory.usable)
    return replace(machine, nodes=nodes)
