"""Which CPUs to pin workers to: one per physical core that this process may really use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kt.errors import UsageError
from kt.machine import numa
from kt.machine.facts import Cgroup, Core, Cpu, Node
from kt.machine.tree import format_ids
from kt.units import Choice

Cpus = tuple[int, ...]
EVERY_CORE = "every physical core"


def choose(cpu: Cpu, cgroup: Cgroup, nodes: Sequence[Node], cap: int | None) -> Choice[Cpus]:
    """The CPUs in the order of their nodes, and every step that left some out. `cap`: KT_THREADS;
    raises UsageError if it asks for more than there are."""
    chosen: Cpus = tuple(c for core in cpu.cores for c in core.cpus)
    reasons: list[str] = []
    steps: tuple[tuple[Callable[[Cpus], Cpus], str], ...] = (
        (
            lambda cpus: _among(cpus, cpu.affinity),
            f"affinity mask {format_ids(cpu.affinity)}",
        ),
        (
            lambda cpus: _among(cpus, cgroup.cpus),
            f"cpuset {format_ids(cgroup.cpus or ())}",
        ),
        (
            lambda cpus: _on_allowed_nodes(cpus, nodes),
            "NUMA nodes in Mems_allowed only",
        ),
        (lambda cpus: _fast(cpus, cpu.cores), "fast cores only"),
        (lambda cpus: _one_per_core(cpus, cpu.cores), "one per SMT pair"),
        (
            lambda cpus: _by_node(cpus, nodes)[: _whole(cgroup.quota)],
            _quota_reason(cgroup),
        ),
    )
    for step, reason in steps:
        left = step(chosen)
        if len(left) < len(chosen):
            reasons.append(reason)
        chosen = left
    found = Choice(chosen, "; ".join(reasons) or EVERY_CORE)
    first = limited(found, cap, f"KT_THREADS={cap}")
    if len(first.value) < len(chosen):
        return Choice(first.value, "; ".join([*reasons, f"KT_THREADS={cap}"]))
    return found


def limited(found: Choice[Cpus], count: int | None, wish: str) -> Choice[Cpus]:
    """The first `count` of the CPUs; `wish` is what the user typed to ask for so many. Raises
    UsageError."""
    if count is None:
        return found
    if not 1 <= count <= len(found.value):
        raise UsageError(
            f"{wish}: this machine has 1 to {len(found.value)} for kt ({found.reason})",
            hint="Ask for one of these, or leave it out: more would only be slower.",
        )
    return Choice(found.value[:count], "asked for")


def _among(cpus: Cpus, allowed: Cpus | None) -> Cpus:
    """Those allowed; all of them where none would be left (a captured mask of another moment)."""
    return tuple(c for c in cpus if allowed is None or c in allowed) or cpus


def _on_allowed_nodes(cpus: Cpus, nodes: Sequence[Node]) -> Cpus:
    outside = {c for node in nodes if not numa.may_work(node) for c in node.cpus}
    return tuple(c for c in cpus if c not in outside) or cpus


def _fast(cpus: Cpus, cores: Sequence[Core]) -> Cpus:
    """A slow core would hold up every barrier. Where only slow ones are left, they are used."""
    fast = {c for core in cores if core.fast for c in core.cpus}
    return tuple(c for c in cpus if c in fast) or cpus


def _one_per_core(cpus: Cpus, cores: Sequence[Core]) -> Cpus:
    available = set(cpus)
    return tuple(min(own) for core in cores if (own := available & set(core.cpus)))


def _by_node(cpus: Cpus, nodes: Sequence[Node]) -> Cpus:
    """Grouped by node, so that a quota takes its share from as few nodes as possible."""
    home = {c: node.id for node in nodes for c in node.cpus}
    return tuple(sorted(cpus, key=lambda c: (home.get(c, -1), c)))


def _whole(quota: float | None) -> int | None:
    """Rounded down: a thread more than the quota pays for is stopped in the middle of its work, and
    the others wait for it."""
    return None if quota is None else max(1, int(quota))


def _quota_reason(cgroup: Cgroup) -> str:
    return f"CFS quota of {cgroup.quota or 0:.4g} CPUs in {cgroup.quota_group}"
