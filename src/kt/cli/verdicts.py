"""What `kt doctor` says: a verdict on every fact, and what to do about those that are not fine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kt.kernels.variants import Variant
from kt.machine import numa
from kt.machine.facts import Disk, Machine, Node
from kt.machine.tree import format_ids
from kt.units import GIB, Choice, format_bytes

Verdict = Literal["ok", "warn", "bad"]

DISTURBED = 0.1
"""Others' part of the CPUs' time above which a measured bandwidth is not the memory's."""
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


@dataclass(frozen=True)
class Line:
    """One fact. advice: what to do, "" where nothing is to be done."""

    section: str
    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


def judge(machine: Machine, variant: Choice[Variant]) -> tuple[Line, ...]:
    """Every line of the report, in the order in which it is shown."""
    return (
        *_cpu(machine, variant),
        *_threads(machine),
        *_memory(machine),
        *(_node(machine, node) for node in machine.nodes),
        *_gpus(machine),
        *([_disk(machine.disk)] if machine.disk else []),
    )


def _cpu(machine: Machine, variant: Choice[Variant]) -> Iterator[Line]:
    cpu = machine.cpu
    yield Line("CPU", "processor", cpu.model or cpu.vendor or "unknown")
    yield _flags(machine)
    if "amx_tile" in cpu.flags:
        yield _amx(machine)
    yield Line("CPU", "kernel variant", f"{variant.value.name}: {variant.reason}")


def _flags(machine: Machine) -> Line:
    cpu = machine.cpu
    value = " ".join(sorted(cpu.flags))
    if cpu.flags_source != "cpuid":
        advice = "The native probe was not used, so these are the kernel's words; reinstall kt."
        return Line("CPU", "instructions", value, "warn", advice)
    if cpu.flags_disputed:
        disputed = ", ".join(sorted(cpu.flags_disputed))
        advice = (
            f"CPUID and /proc/cpuinfo disagree about {disputed} (an emulator, or a kernel started "
            "with clearcpuid); kt believes CPUID. If it crashes, lower KT_VARIANT."
        )
        return Line("CPU", "instructions", value, "warn", advice)
    return Line("CPU", "instructions", value)


def _amx(machine: Machine) -> Line:
    if machine.cpu.amx_permitted:
        return Line("CPU", "AMX tiles", "permitted by the kernel")
    advice = (
        f"Linux 5.16 or newer is needed (this is {machine.kernel or 'unknown'}), and in a "
        "container a seccomp profile that lets arch_prctl through. Until then prefill is slower."
    )
    return Line("CPU", "AMX tiles", "present, but the kernel refuses them", "warn", advice)


def _threads(machine: Machine) -> Iterator[Line]:
    cpu, quota = machine.cpu, machine.cgroup.quota
    fast = sum(core.fast for core in cpu.cores)
    slow = len(cpu.cores) - fast
    smt = any(len(core.cpus) > 1 for core in cpu.cores)
    kinds = f"{fast} fast, {slow} slow" if slow else f"{fast}"
    online = sum(len(core.cpus) for core in cpu.cores)
    value = f"{kinds}{', SMT on' if smt else ''}; {online} CPUs online, this process may use "
    yield Line("Threads", "cores", value + (format_ids(cpu.affinity) or "none"))
    if quota is not None:
        yield _quota(quota, machine.cgroup.quota_group)
    workers = machine.worker_cpus
    value = f"{len(workers.value)} on CPUs {format_ids(workers.value)}: {workers.reason}"
    if not workers.value:
        yield Line("Threads", "workers", value, "bad", "No CPU was found; is /sys or /proc hidden?")
    else:
        yield Line("Threads", "workers", value)


def _quota(quota: float, group: str) -> Line:
    value = f"{quota:.4g} CPUs in {group}"
    if quota < 1:
        advice = (
            "Less than one core: the worker is stopped for part of every period. Give the "
            "container or service at least one whole CPU (docker --cpus, CPUQuota=)."
        )
        return Line("Threads", "CPU quota", value, "warn", advice)
    if quota != int(quota):
        advice = "kt uses whole CPUs; the fraction is left idle. A whole number serves it better."
        return Line("Threads", "CPU quota", value, "warn", advice)
    return Line("Threads", "CPU quota", value)


def _memory(machine: Machine) -> Iterator[Line]:
    memory = machine.memory
    value = f"{format_bytes(memory.total)}, of which {format_bytes(memory.available)} available"
    if memory.available < memory.total / 4:
        advice = "Other programs hold most of it; end some to run larger models."
        yield Line("Memory", "main memory", value, "warn", advice)
    else:
        yield Line("Memory", "main memory", value)
    if memory.limit is not None and memory.limit < memory.total:
        value = f"{format_bytes(memory.limit)} in {machine.cgroup.memory_group}"
        small = memory.limit < memory.total / 2
        advice = "The control group allows less than half; raise it (docker --memory, MemoryMax=)."
        yield Line("Memory", "limit", value, *(("warn", advice) if small else ()))
    value = f"{format_bytes(memory.usable)}: {memory.usable_reason}"
    if memory.usable < GIB // 2:
        advice = "Only the smallest models fit; free memory or raise the limit."
        yield Line("Memory", "usable by kt", value, "bad", advice)
    else:
        yield Line("Memory", "usable by kt", value)
    yield _huge_pages(machine)
    if memory.huge_pages_free * memory.huge_page_size > memory.total / 20:
        value = format_bytes(memory.huge_pages_free * memory.huge_page_size)
        advice = "kt uses transparent huge pages, so these are lost to it: sysctl vm.nr_hugepages=0"
        yield Line("Memory", "reserved pages", f"{value} set aside and unused", "warn", advice)


def _huge_pages(machine: Machine) -> Line:
    mode = machine.memory.transparent_huge_pages
    if mode in ("always", "madvise"):
        return Line("Memory", "huge pages", f"transparent, {mode}")
    advice = f"Large weights are read faster with them: echo madvise | sudo tee {THP}"
    if mode == "never":
        return Line("Memory", "huge pages", "switched off (never)", "warn", advice)
    return Line("Memory", "huge pages", "not offered by this kernel", "warn", "Reads are slower.")


def _node(machine: Machine, node: Node) -> Line:
    name = f"node {node.id}"
    cpus = f"CPUs {format_ids(node.cpus)}" if node.cpus else "no CPUs"
    memory = format_bytes(node.total) if node.total else "no memory"
    rate = f", reads {node.bandwidth / 1e9:.1f} GB/s" if node.bandwidth else ""
    value = f"{cpus}, {memory}{rate}"
    if node.total and not node.allowed:
        advice = "Outside this process's Mems_allowed, so left out; widen cpuset.mems to use it."
        return Line("NUMA", name, value, "warn", advice)
    if node.cpus and not node.total:
        nearest = numa.memory_node(machine.nodes, node)
        advice = (
            f"Its workers use the memory of node {nearest}, the nearest, which is slower. Check "
            "that every socket has memory modules."
        )
        return Line("NUMA", name, value, "warn", advice)
    if not node.cpus and node.id not in numa.memory_nodes(machine.nodes):
        return Line("NUMA", name, value + "; memory without CPUs is left unused")
    if node.others is not None and node.others > DISTURBED:
        value += f" while other programs took {100 * node.others:.0f} % of the CPUs' time"
        advice = (
            "So this is less than memory can give, and kt will be slower as long as they run. "
            "`top` names them; measure again when they have ended."
        )
        return Line("NUMA", name, value, "warn", advice)
    return Line("NUMA", name, value)


def _gpus(machine: Machine) -> Iterator[Line]:
    if not machine.gpus:
        yield Line("GPU", "accelerator", "none found; everything runs on the CPU")
    for gpu in machine.gpus:
        value = f"{gpu.name}, {format_bytes(gpu.total)}, {format_bytes(gpu.free)} free"
        if gpu.free < gpu.total / 4:
            advice = "Other programs hold most of its memory."
            yield Line("GPU", f"gpu {gpu.index}", value, "warn", advice)
        else:
            yield Line("GPU", f"gpu {gpu.index}", value)


def _disk(disk: Disk) -> Line:
    if disk.problem:
        advice = "Set HF_HOME or HF_HUB_CACHE to a folder that kt can write to."
        return Line("Disk", "downloads", f"{disk.path}: {disk.problem}", "bad", advice)
    value = f"{format_bytes(disk.free)} free of {format_bytes(disk.total)} at {disk.path}"
    advice = "Models are tens of gigabytes; free some space, or set HF_HOME to a larger disk."
    if disk.free < GIB:
        return Line("Disk", "downloads", value, "bad", advice)
    if disk.free < 20 * GIB:
        return Line("Disk", "downloads", value, "warn", advice)
    return Line("Disk", "downloads", value)
