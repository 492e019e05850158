"""The six kernel variants, and which of them this CPU runs."""

from __future__ import annotations

from dataclasses import dataclass

from kt.errors import MachineError, UsageError
from kt.machine.facts import Cpu
from kt.units import Choice


@dataclass(frozen=True)
class Variant:
    """A compiled kernel library. flags: every CPU feature that its code uses, named as in
    /proc/cpuinfo. tiles: it also needs the kernel's permission to use AMX tiles."""

    name: str
    flags: frozenset[str]
    tiles: bool = False

    def missing(self, cpu: Cpu) -> list[str]:
        """What `cpu` lacks to run this variant; the permission where it has every feature."""
        features = sorted(self.flags - cpu.flags)
        if not features and self.tiles and not cpu.amx_permitted:
            return [PERMISSION]
        return features


PERMISSION = "the kernel's permission for tiles"

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_VNNI = _AVX512 | {"avx512_vnni"}
_VBMI = _VNNI | {"avx512vbmi"}
_BF16 = _VBMI | {"avx512_bf16"}
_AMX = _BF16 | {"amx_tile", "amx_int8", "amx_bf16"}

VARIANTS: tuple[Variant, ...] = (  # best first
    Variant("amx", _AMX, tiles=True),
    Variant("avx512_bf16", _BF16),
    Variant("avx512_vbmi", _VBMI),
    Variant("avx512_vnni", _VNNI),
    Variant("avx512", _AVX512),
    Variant("avx2", _AVX2),
)


def select(cpu: Cpu, override: str | None, *, source: str = "KT_VARIANT") -> Choice[Variant]:
    """The best variant whose every need `cpu` meets, or `override` where it does too.

    source: where the override comes from, for the messages.

    Raises MachineError for a CPU below AVX2, UsageError for an override that does not exist or that
    the CPU cannot run.
    """
    best = next((variant for variant in VARIANTS if not variant.missing(cpu)), None)
    if best is None:
        name, lacks = cpu.model or cpu.vendor or "unknown", ", ".join(VARIANTS[-1].missing(cpu))
        raise MachineError(
            "kt needs a CPU with AVX2, FMA and F16C (Intel since 2013, AMD since 2015); "
            f"this one ({name}) lacks {lacks}."
        )
    if override is None:
        return Choice(best, _reason(cpu, best))
    asked = next((variant for variant in VARIANTS if variant.name == override), None)
    if asked is None:
        names = ", ".join(variant.name for variant in VARIANTS)
        raise UsageError(
            f"{source}={override!r} is not a kernel variant",
            hint=f"There are {names}.",
        )
    if missing := asked.missing(cpu):
        raise UsageError(
            f"{source}={override} is more than this CPU can run: it lacks {', '.join(missing)}",
            hint=f"{source} may only go down: here {best.name} or a lower one.",
        )
    return Choice(asked, f"{source} asks for it; the best here is {best.name}")


def _reason(cpu: Cpu, best: Variant) -> str:
    better = VARIANTS[: VARIANTS.index(best)]
    if not better:
        return "the CPU has everything the best variant needs"
    above = better[-1]
    missing = above.missing(cpu)
    if missing == [PERMISSION]:
        return "the CPU has AMX, but the kernel does not permit its tiles"
    return f"the best that this CPU can run; {above.name} also needs {', '.join(missing)}"
