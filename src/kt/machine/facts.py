"""What a machine is: frozen facts, and their JSON. Amounts are bytes unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kt.errors import MachineError
from kt.machine import codec
from kt.units import Choice

SCHEMA = 1


@dataclass(frozen=True)
class Core:
    """A physical core: its online CPUs (SMT siblings, lowest first). `fast` is false for the slow
    class of a hybrid CPU."""

    cpus: tuple[int, ...]
    fast: bool = True


@dataclass(frozen=True)
class Cpu:
    """The processors.

    flags: features that this process may use, named as in /proc/cpuinfo, among `cpu.FLAGS`.
    flags_source: "cpuid" (CPUID and XGETBV), or "cpuinfo" for a replayed tree or without the probe.
    flags_disputed: features that CPUID and /proc/cpuinfo disagree about.
    amx_permitted: the kernel lets this process use AMX tiles. affinity: CPUs this process may run
    on.
    """

    vendor: str
    model: str
    flags: frozenset[str]
    flags_source: str
    flags_disputed: frozenset[str]
    amx_permitted: bool
    cores: tuple[Core, ...]
    affinity: tuple[int, ...]


@dataclass(frozen=True)
class Cgroup:
    """The strictest limits of this process's control groups and of all their parents; None: none.

    quota: CPUs' worth of time (2.5: two and a half). quota_group, memory_group: the group that sets
    it. cpus, mems: allowed CPUs and NUMA nodes. memory_free: the least that a limited group still
    grants.
    """

    quota: float | None = None
    quota_group: str = ""
    cpus: tuple[int, ...] | None = None
    mems: tuple[int, ...] | None = None
    memory_limit: int | None = None
    memory_free: int | None = None
    memory_group: str = ""


@dataclass(frozen=True)
class Node:
    """A NUMA node. `total` is 0 on a node without memory, `cpus` empty on one without CPUs (online
    CPUs only). allowed: this process may have memory there. distances: (node id, distance), 10 is
    local. bandwidth: measured read bandwidth of its CPUs together, bytes per second, or None.
    others: the part of its CPUs' time that other programs had meanwhile, 0 to 1, or None."""

    id: int
    cpus: tuple[int, ...]
    total: int
    available: int
    allowed: bool
    distances: tuple[tuple[int, int], ...]
    bandwidth: float | None = None
    others: float | None = None


@dataclass(frozen=True)
class Memory:
    """Main memory. limit: of the control groups. usable: what planning may use, and why.
    transparent_huge_pages: "always", "madvise", "never" or "" (unknown). huge_pages_free: reserved
    pages of huge_page_size that nobody uses."""

    total: int
    available: int
    limit: int | None
    usable: int
    usable_reason: str
    transparent_huge_pages: str
    huge_page_size: int
    huge_pages_total: int
    huge_pages_free: int
    swap_total: int


@dataclass(frozen=True)
class Gpu:
    """An accelerator. source: "nvml", "sysfs" or "torch". node: NUMA node, None if unknown.
    capability: compute capability ("9.0") or ""."""

    index: int
    name: str
    total: int
    free: int
    source: str
    driver: str = ""
    capability: str = ""
    node: int | None = None


@dataclass(frozen=True)
class Disk:
    """The file system of `path`, where downloads go. free: what this user may still write. problem:
    why nothing can be written there, else "".
    """

    path: str
    total: int
    free: int
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """One machine as this process may use it. The two decisions in it are `worker_cpus`, the CPUs
    to pin workers to (its length is the thread count), and `memory.usable`."""

    kernel: str
    cpu: Cpu
    cgroup: Cgroup
    worker_cpus: Choice[tuple[int, ...]]
    memory: Memory
    nodes: tuple[Node, ...]
    gpus: tuple[Gpu, ...]
    disk: Disk | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, with the schema's number."""
        return {"schema": SCHEMA, **codec.encode(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        """The inverse of `to_json`. Raises MachineError for another schema or damaged data."""
        if data.get("schema") != SCHEMA:
            raise MachineError(
                f"machine JSON has schema {data.get('schema')!r}; this kt reads schema {SCHEMA}"
            )
        try:
            machine: Machine = codec.decode(cls, data)
        except (KeyError, TypeError, ValueError) as error:
            raise MachineError(f"machine JSON is damaged: {error!r}") from error
        return machine
