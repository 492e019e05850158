"""Control group limits, versions 1 and 2: of this process's groups and of all groups above them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kt.machine.facts import Cgroup
from kt.machine.tree import Tree

NO_LIMIT_V1 = 1 << 62  # version 1 writes "no limit" as the largest multiple of a page below 2^63


def read(tree: Tree) -> Cgroup:
    """The strictest of every limit. A machine without control groups has none."""
    cpu, cpuset, memory = (_folders(tree, name) for name in ("cpu", "cpuset", "memory"))
    quota, quota_group = _least((_quota(tree, folder), folder) for folder in cpu)
    limit, memory_group = _least((_limit(tree, folder), folder) for folder in memory)
    free, _ = _least((_memory_free(tree, folder), folder) for folder in memory)
    return Cgroup(
        quota=quota,
        quota_group=quota_group,
        cpus=_common(
            tree,
            cpuset,
            ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"),
        ),
        mems=_common(
            tree,
            cpuset,
            ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"),
        ),
        memory_limit=None if limit is None else int(limit),
        memory_free=None if free is None else int(free),
        memory_group=memory_group,
    )


def _least(limits: Iterable[tuple[float | None, str]]) -> tuple[float | None, str]:
    found = [(limit, folder) for limit, folder in limits if limit is not None]
    return min(found, key=lambda pair: pair[0]) if found else (None, "")


def _folders(tree: Tree, controller: str) -> list[str]:
    """Folders of this process's groups, with their parents up to the mount point. A hybrid system
    has the controller in version 1 and an empty version 2 hierarchy beside it, so both are looked
    at."""
    folders = []
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount, mount_root = _mount(tree, controller if controllers else "")
            below = _relative(group, mount_root)
            folders += [mount + "/".join(below[:n]) for n in range(len(below), 0, -1)]
    return folders


def _relative(group: str, mount_root: str) -> list[str]:
    """Parts of the group's path below the mount point, first "". Inside a container the group may
    be named by a path that the container does not see; then only the mount point itself is left."""
    prefix = mount_root.rstrip("/")
    if ".." in group or not (group + "/").startswith(prefix + "/"):
        return [""]
    return ["", *(part for part in group[len(prefix) :].split("/") if part)]


def _mount(tree: Tree, controller: str) -> tuple[str, str]:
    """(mount point, the group mounted there) of a version 1 controller, or of version 2 for ""."""
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = (*after.split(" ", 2), "", "")[:3]
        if (kind, controller) == ("cgroup2", "") or (
            kind == "cgroup" and controller in options.split(",")
        ):
            mount_root, mount = (_unescape(field) for field in before.split(" ")[3:5])
            return mount, mount_root
    return "/sys/fs/cgroup" + (f"/{controller}" if controller else ""), "/"


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _quota(tree: Tree, folder: str) -> float | None:
    """CPUs' worth of time. Version 2: "max 100000" or "150000 100000"; version 1: -1 is none."""
    text = tree.text(f"{folder}/cpu.max")
    if text is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    quota_us = tree.number(f"{folder}/cpu.cfs_quota_us")
    period_us = tree.number(f"{folder}/cpu.cfs_period_us")
    if quota_us is None or quota_us < 0 or not period_us:
        return None
    return quota_us / period_us


def _limit(tree: Tree, folder: str) -> int | None:
    """Bytes. memory.high does not kill but slows the process to a crawl, so it is a limit too."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    numbers = [tree.number(f"{folder}/{name}") for name in names]  # "max" is not a number
    return min((n for n in numbers if n is not None and n < NO_LIMIT_V1), default=None)


def _memory_free(tree: Tree, folder: str) -> int | None:
    """What the group's limit leaves. Cached file pages count as used but are given back on need."""
    limit = _limit(tree, folder)
    if limit is None:
        return None
    used = tree.number(f"{folder}/memory.current")
    if used is None:
        used = tree.number(f"{folder}/memory.usage_in_bytes") or 0
    stat = tree.table(f"{folder}/memory.stat")
    # Version 1 counts the groups below in total_*, version 2 in the plain figure.
    kinds = ("inactive_file", "active_file")
    cached = sum(int(stat.get(f"total_{kind}", stat.get(kind, "0"))) for kind in kinds)
    return max(0, limit - max(0, used - cached))


def _common(tree: Tree, folders: list[str], names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Ids that every group allows. An empty file sets nothing."""
    common: set[int] | None = None
    for folder in folders:
        ids = next((found for n in names if (found := tree.ids(f"{folder}/{n}"))), None)
        if ids is not None:
            common = set(ids) if common is None else common & set(ids)
    return tuple(sorted(common)) if common else None
