"""The native probe: CPUID, AMX permission and read bandwidth. Safe to load on any x86-64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).parent.parent / "kernels" / "lib" / "libkt_probe.so"
VERSION = 2


class Probe:
    """The loaded probe library."""

    def __init__(self, lib: Any, ffi: Any) -> None:
        self._lib, self._ffi = lib, ffi

    def names(self) -> tuple[str, ...]:
        """The flags that the probe knows, in the order of its bits."""
        names: list[str] = []
        while (name := self._lib.kt_probe_flag_name(len(names))) != self._ffi.NULL:
            names.append(self._text(name))
        return tuple(names)

    def flags(self) -> frozenset[str]:
        """Features that the CPU has and the operating system saves the registers of."""
        bits = self._lib.kt_probe_flags()
        return frozenset(name for bit, name in enumerate(self.names()) if bits >> bit & 1)

    def vendor(self) -> str:
        """The CPUID vendor, "GenuineIntel"."""
        return self._text(self._lib.kt_probe_vendor())

    def model(self) -> str:
        """The CPUID model name, or ""."""
        return self._text(self._lib.kt_probe_model())

    def amx_permission(self) -> bool:
        """Asks the kernel for AMX tiles, for this process and its future threads."""
        return bool(self._lib.kt_probe_amx_permission())

    def read_bandwidth(self, cpus: Sequence[int], size: int, seconds: float) -> float:
        """Bytes per second that threads on `cpus` read together from `size` bytes; 0 if it
        failed."""
        return float(self._lib.kt_probe_read_bandwidth(list(cpus), len(cpus), size, seconds))

    def guard_maps(self, message: str, status: int) -> bool:
        """From now on the process ends with `status`, after `message`, when a mapped file has
        become shorter and what is gone is touched; without this, by a signal.
        """
        return bool(self._lib.kt_probe_guard_maps(message.encode(), status))

    def _text(self, pointer: Any) -> str:
        return " ".join(self._ffi.string(pointer).decode("ascii", "replace").split())


@cache
def load() -> Probe | None:
    """The probe, or None where its library was not built (or is of another version)."""
    if not LIBRARY.exists():
        return None
    from kt.machine.probe_abi import ffi

    try:
        lib: Any = ffi.dlopen(str(LIBRARY))
        return Probe(lib, ffi) if lib.kt_probe_version() == VERSION else None
    except (OSError, AttributeError):
        return None
