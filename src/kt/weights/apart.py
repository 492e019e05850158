"""Exact float32 values of codes whose scales lie apart."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kt.weights.encodings import AWQ, FP8, GPTQ, GPTQ8, INT8, U4
from kt.weights.quant import E2M1, E4M3, Quant
from kt.weights.tensor import Tensor

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

AWQ_ROWS: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight rows (or zero points) nibble j of an AWQ word holds."""


def dequantize_apart(tensor: Tensor, quant: Quant) -> F32:
    """Float32 array of tensor.shape: scale * (code - zero) * factor, each product rounded once."""
    if len(tensor.shape) > 2:
        parts = [tensor.matrix(i) for i in range(tensor.shape[0])]
        return np.stack([dequantize_apart(part, part.quant or quant) for part in parts])
    scales = _spread(quant.scale_values(), quant, tensor.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        values = scales * _codes(tensor, quant)
        result: F32 = values if quant.factor is None else values * np.float32(quant.factor_value())
    return result


def _spread(groups: npt.NDArray[np.generic], quant: Quant, shape: tuple[int, ...]) -> F32:
    """[row blocks, groups] -> float32 [n, k]."""
    rows = np.repeat(groups.astype(np.float32), quant.block[0], axis=0)[: shape[0]]
    if quant.order is not None:
        return rows[:, quant.order]
    return np.repeat(rows, quant.block[1], axis=1)[:, : shape[1]]


def raw_codes(tensor: Tensor) -> U8:
    """The codes of words or nibbles as they are: [n, k]."""
    n, k = tensor.shape
    return _UNPACK[tensor.encoding.id](tensor.data, n)[:, :k]


def _codes(tensor: Tensor, quant: Quant) -> F32:
    """What the codes stand for, less their zero points: float32 [n, k]."""
    n, k = tensor.shape
    if tensor.encoding is INT8:
        return tensor.data.view(np.int8).reshape(n, k).astype(np.float32)
    if tensor.encoding is FP8:
        values: F32 = E4M3[tensor.data.reshape(n, k)]
        return values
    codes = raw_codes(tensor)
    if quant.packed_format.startswith("F4"):
        sizes: F32 = E2M1[codes & 7]
        return np.where(codes & 8, -sizes, sizes)
    if quant.zeros is None:
        return codes.astype(np.float32) - 8
    return codes.astype(np.float32) - _spread(quant.zeros(), quant, tensor.shape)


def _u4(data: U8, n: int) -> U8:
    return unpack_nibbles(data.reshape(n, -1))


def _gptq(data: U8, n: int) -> U8:
    words = data.view("<u4").reshape(-1, n)
    shifts = np.arange(0, 32, 4, dtype=np.uint32).reshape(1, 8, 1)
    codes = (words[:, None, :] >> shifts & 15).astype(np.uint8)
    return np.ascontiguousarray(codes.reshape(-1, n).T)


def _gptq8(data: U8, n: int) -> U8:
    codes = data.reshape(-1, n, 4)  # byte j of a word is column 4 i + j
    return np.ascontiguousarray(codes.transpose(1, 0, 2)).reshape(n, -1)


def _awq(data: U8, n: int) -> U8:
    return np.ascontiguousarray(awq_order(unpack_nibbles(data.reshape(-1, n // 2))).T)


_UNPACK: Final = {U4.id: _u4, GPTQ.id: _gptq, AWQ.id: _awq, GPTQ8.id: _gptq8}


def unpack_nibbles(packed: U8) -> U8:
    """[rows, b] bytes -> [rows, 2b], the low nibble first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def awq_order(nibbles: U8) -> U8:
    """[rows, n] nibbles of AWQ words -> in the order of the columns."""
    words = nibbles.reshape(len(nibbles), -1, 8)
    return words[:, :, np.argsort(AWQ_ROWS)].reshape(nibbles.shape)
