"""Packing a matrix a piece at a time: packed bytes, and how far they are from the source."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import numpy as np

from kt.convert.layout import Matrix
from kt.convert.targets import ERROR_LIMITS, SEARCHED
from kt.engine.batch import F32
from kt.engine.sources import source_of
from kt.errors import ModelError
from kt.kernels.library import Library, Source
from kt.weights.dequantize import dequantize
from kt.weights.tensor import Bytes, Tensor

PIECE_ROWS: Final = 128
"""Pieces have a multiple of this: whole panels, and whole blocks of scales."""
PIECE_WEIGHTS: Final = 1 << 19
"""About this many weights are in a piece; a thread holds some 4 MiB for one."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a matrix, packed. error, norm: sums of squares of the difference from the
    source and of the source.
    """

    index: int
    packed: Bytes
    error: float
    norm: float


class Packer:
    """Packs pieces on `threads` threads, each with its own native pool: what follows from a piece
    does not depend on how many there are. importance: role -> what its inputs count: float32 [k],
    or one such row for each expert. Use it in a `with`.
    """

    def __init__(
        self, library: Library, threads: int, importance: Mapping[str, F32] | None = None
    ) -> None:
        self._library = library
        self._importance = importance or {}
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, "kt-convert")
        self._local = threading.local()

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def pieces(self, matrix: Matrix) -> Iterator[Piece]:
        """All pieces of the matrix and its experts, in order. Raises ModelError."""
        importance = self._importance.get(matrix.name)
        waiting: deque[Future[Piece]] = deque()
        for index, part in _parts(matrix):
            counts = importance
            if importance is not None and importance.ndim == 2:
                counts = np.ascontiguousarray(importance[index])
            waiting.append(self._executor.submit(self._pack, index, part, matrix, counts))
            if len(waiting) > 2 * self._threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _pack(self, index: int, part: Tensor, matrix: Matrix, importance: F32 | None) -> Piece:
        library, (n, k), packed_format = self._library, part.shape, matrix.format
        size = library.lib.kt_packed_bytes(library.format(packed_format), n, k)
        packed, values = np.empty(size, np.uint8), dequantize(part)
        rows = matrix.rows.of(index) if matrix.rows else None
        if rows is not None:
            values = values[rows]
        if matrix.columns:
            columns = matrix.columns.of(index)
            values = np.take(values, columns, axis=1)
            importance = None if importance is None else importance[columns]
        factor = 1.0
        if packed_format == part.packed_format:
            source = source_of(part, packed_format, rows)
            factor = part.quant.factor_value() if part.quant else 1.0
        else:
            search = packed_format in SEARCHED
            source = Source(values, 0, 4 * k, search=search, importance=importance)
        target = library.ffi.from_buffer(packed)
        library.pack(self._pool, packed_format, (n, k), source, target)
        unpacked = np.empty((n, k), np.float32)
        library.unpack(self._pool, packed_format, (n, k), target, unpacked)
        if factor != 1.0:
            unpacked *= np.float32(factor)
        return Piece(index, packed, *_distance(part.name, values, unpacked))

    @property
    def _pool(self) -> Any:
        if not hasattr(self._local, "pool"):
            self._local.pool = self._library.new_pool(None, 1)
        return self._local.pool


def check_error(name: str, packed_format: str, piece: Piece) -> None:
    """Raises ModelError if a piece is further from its source than correct rounding can bring it.

    A matrix that keeps its own format must come back exactly.
    """
    limit = ERROR_LIMITS.get(packed_format, 0.0) * 1.01 + 1e-7
    if piece.error > limit**2 * piece.norm:
        raise ModelError(
            f"{name} (matrix {piece.index}) cannot be held in {packed_format}: its relative error "
            f"would be {(piece.error / piece.norm) ** 0.5:.3g}, and rounding allows {limit:.3g}",
            hint="Its numbers are too large or too small for the format. Choose another --format.",
        )


def _parts(matrix: Matrix) -> Iterator[tuple[int, Tensor]]:
    """The pieces as parts of the source. Rows that change places come from all of a matrix."""
    for index, tensor in enumerate(matrix.tensors):
        n, k = tensor.shape
        step = max(PIECE_WEIGHTS // k // PIECE_ROWS, 1) * PIECE_ROWS
        if n <= step or matrix.rows or not _splits(tensor, step):
            yield index, tensor
            continue
        for first in range(0, n, step):
            yield index, tensor.rows(first, min(first + step, n))


def _splits(tensor: Tensor, step: int) -> bool:
    try:
        tensor.rows(0, step)
    except ModelError:
        return False
    return True


def _distance(name: str, values: F32, unpacked: F32) -> tuple[float, float]:
    """Sums of squares. numpy adds in one order, whatever the machine, so a record is the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.square(values).sum(dtype=np.float64))
        np.subtract(unpacked, values, out=unpacked)
        error = float(np.square(unpacked, out=unpacked).sum(dtype=np.float64))
    if not np.isfinite(norm) or not np.isfinite(error):
        raise ModelError(
            f"{name} holds numbers that are not finite, or become so in this format",
            hint="Are the files damaged? Or choose another --format, bf16 say.",
        )
    return error, norm
