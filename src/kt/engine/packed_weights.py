"""Weights of a converted model: used where their files are mapped, or read into memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from kt.engine.lowering import PackedMatrix
from kt.errors import ModelError
from kt.weights.mapped import forget
from kt.weights.packed_folder import ALIGNMENT
from kt.weights.tensor import Bytes

PIECE: Final = 8 << 20
"""Bytes that a thread copies at a time."""


def mapped_at(matrix: PackedMatrix) -> int:
    """The address of a matrix, or of all experts of a part, where its file is mapped; the step
    program keeps the tensors, and they the map. Raises ModelError.
    """
    first = matrix.tensors[0].data.ctypes.data
    for i, tensor in enumerate(matrix.tensors):
        if tensor.data.size != matrix.stride or tensor.data.ctypes.data % ALIGNMENT:
            raise ModelError(f"{tensor.name} is not packed as {matrix.format}")
        if tensor.data.ctypes.data != first + i * matrix.stride:
            raise ModelError(f"{tensor.name} does not follow the expert before it")
    return int(first)


def read_into(matrix: PackedMatrix, target: Bytes, threads: int) -> None:
    """Copies the packed bytes of a matrix and all its experts. Raises ModelError."""
    mapped_at(matrix)
    pieces = []
    for i, tensor in enumerate(matrix.tensors):
        tensor.check_length()
        place = target[i * matrix.stride : (i + 1) * matrix.stride]
        pieces += [
            (place[at : at + PIECE], tensor.data[at : at + PIECE])
            for at in range(0, matrix.stride, PIECE)
        ]
    with ThreadPoolExecutor(min(threads, len(pieces))) as pool:
        list(pool.map(lambda piece: np.copyto(*piece), pieces))
    for tensor in matrix.tensors:
        tensor.check_length()
    forget(matrix.tensors)
