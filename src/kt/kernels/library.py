"""Loading a kernel library. The caller has made sure that the CPU can run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kt.errors import KtError, MachineError, NotFinite
from kt.kernels import abi


@dataclass(frozen=True)
class Source:
    """Where a matrix is packed from: kt_source in native/include/kt.h. data, scales and zeros are
    buffers. scale_block: rows and columns that share a scale; scale_stride: scales of a row.
    search: 4-bit scales that make the squared error small; importance: float32 [k], what each
    input's error counts then. grid: uint8, of an IQ type."""

    data: Any
    encoding: int
    row_bytes: int
    scales: Any = None
    scale_type: int = 0
    scale_stride: int = 0
    scale_block: tuple[int, int] = (1, 1)
    zeros: Any = None
    search: bool = False
    importance: Any = None
    grid: Any = None


@dataclass(frozen=True)
class Library:
    """A loaded variant: `lib.kt_*` are the functions of kt.h, `ffi` makes their arguments."""

    name: str
    ffi: Any
    lib: Any

    def format(self, name: str) -> int:
        """The number of a packed format: "I4_G32" -> KT_I4_G32."""
        return int(getattr(self.lib, f"KT_{name}"))

    def kv_format(self, name: str) -> int:
        """The number of a KV format: "int8" -> KT_KV_INT8."""
        return int(getattr(self.lib, f"KT_KV_{name.upper()}"))

    def error(self) -> str:
        """What the last failed call on this thread said."""
        return bytes(self.ffi.string(self.lib.kt_last_error())).decode()

    def check(self, status: int) -> None:
        """Raises KtError for a negative status, NotFinite for that of a bad logit."""
        if status < 0:
            kind = NotFinite if status == self.lib.KT_NOT_FINITE else KtError
            raise kind(f"the {self.name} kernels: {self.error()}")

    def new_pool(self, cpus: Sequence[int] | None, threads: int | None = None) -> Any:
        """A pool that frees itself: one thread pinned to each of `cpus`, or `threads` unpinned."""
        count = len(cpus) if cpus is not None else threads or 1
        pool = self.lib.kt_pool_new(count, self.ffi.NULL if cpus is None else list(cpus))
        if pool == self.ffi.NULL:
            raise MachineError(f"cannot start {count} worker threads: {self.error()}")
        return self.ffi.gc(pool, self.lib.kt_pool_free)

    def pack(
        self, pool: Any, packed_format: str, shape: tuple[int, int], source: Source, target: Any
    ) -> None:
        """Packs a matrix of `shape` [n, k] into memory at `target`. Raises KtError."""
        ffi = self.ffi
        keep = [ffi.from_buffer(source.data)]
        native = ffi.new("kt_source *")
        native.data, native.row_bytes = keep[0], source.row_bytes
        native.encoding = source.encoding
        if source.scales is not None:
            keep.append(ffi.from_buffer(source.scales))
            native.scales, native.scale_type = keep[1], source.scale_type
            native.scale_stride = source.scale_stride
            native.scale_rows, native.scale_k = source.scale_block
        if source.zeros is not None:
            keep.append(ffi.from_buffer("uint8_t[]", source.zeros))
            native.zeros = keep[-1]
        native.search = source.search
        if source.importance is not None:
            keep.append(ffi.from_buffer("float[]", source.importance))
            native.importance = keep[-1]
        if source.grid is not None:
            keep.append(ffi.from_buffer("uint8_t[]", source.grid))
            native.grid = keep[-1]
        n, k = shape
        self.check(self.lib.kt_pack(pool, self.format(packed_format), n, k, native, target))

    def unpack(
        self, pool: Any, packed_format: str, shape: tuple[int, int], packed: Any, target: Any
    ) -> None:
        """The exact values of a packed matrix [n, k] into `target`, a writable float32 buffer."""
        n, k = shape
        values = self.ffi.from_buffer("float[]", target)
        self.check(self.lib.kt_unpack(pool, self.format(packed_format), n, k, packed, values))


@cache
def load(name: str) -> Library:
    """The library of variant `name`. Raises MachineError if it is missing or of another ABI."""
    ffi: Any = abi.ffi()
    path = abi.LIBRARIES / f"libkt_{name}.so"
    try:
        lib = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        raise MachineError(
            f"the kernel library {path.name} cannot be loaded: {error}",
            hint=abi.INSTALL_AGAIN,
        ) from None
    if lib.kt_abi_version() != abi.VERSION:
        raise MachineError(
            f"{path} is of another kt (ABI {lib.kt_abi_version()}, this kt needs {abi.VERSION})",
            hint=abi.INSTALL_AGAIN,
        )
    return Library(name, ffi, lib)
