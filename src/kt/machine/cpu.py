"""Processors: instruction set flags, AMX permission, affinity."""

from __future__ import annotations

import os
import re

from kt.machine import probe, topology
from kt.machine.facts import Cpu
from kt.machine.tree import Tree

# The features that kt looks at, as /proc/cpuinfo names them, in the order of the probe's bits.
FLAGS = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"),
    *("avx512_vnni", "avx512vbmi", "avx512_vbmi2", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
)
AMX_KERNEL = (5, 16)  # the first Linux that hands out tile permission


def read(tree: Tree) -> Cpu:
    """CPUID is the truth about the running machine: /proc/cpuinfo shows the host's flags under
    user-mode emulation. A replayed tree has /proc/cpuinfo only."""
    info = _cpuinfo(tree)
    listed = frozenset(info.get("flags", "").split()) & frozenset(FLAGS)
    native = probe.load() if tree.live else None
    online = topology.online(tree)
    return Cpu(
        vendor=(native and native.vendor()) or info.get("vendor_id", ""),
        model=(native and native.model()) or info.get("model name", ""),
        flags=native.flags() if native else listed,
        flags_source="cpuid" if native else "cpuinfo",
        flags_disputed=native.flags() ^ listed if native else frozenset(),
        amx_permitted=native.amx_permission() if native else _amx_by_kernel(tree, listed),
        cores=topology.cores(tree, online),
        affinity=_affinity(tree) or online,
    )


def _cpuinfo(tree: Tree) -> dict[str, str]:
    """The first processor's paragraph of /proc/cpuinfo."""
    pairs = (
        line.split(":", 1)
        for line in (tree.text("/proc/cpuinfo") or "").split("\n\n")[0].splitlines()
        if ":" in line
    )
    return {key.strip(): value.strip() for key, value in pairs}


def _amx_by_kernel(tree: Tree, flags: frozenset[str]) -> bool:
    """What arch_prctl would say, as far as a captured tree tells."""
    release = re.match(r"(\d+)\.(\d+)", tree.text("/proc/sys/kernel/osrelease") or "")
    version = (int(release[1]), int(release[2])) if release else (0, 0)
    return "amx_tile" in flags and version >= AMX_KERNEL


def _affinity(tree: Tree) -> tuple[int, ...]:
    if tree.live:
        return tuple(sorted(os.sched_getaffinity(0)))
    return tree.ids_in("/proc/self/status", "Cpus_allowed_list") or ()
