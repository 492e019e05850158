"""Exact float32 values of encoded tensors, in numpy: the meaning of every encoding, and what tests
compare with.

The formulas and their rounding are ggml's (ggml-quants.c); a block is named after its fields there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.weights.apart import dequantize_apart
from kt.weights.iq import IQ_DECODERS
from kt.weights.tensor import Tensor

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def dequantize(tensor: Tensor) -> F32:
    """Float32 array of tensor.shape. Raises ModelError for an encoding that is not implemented."""
    tensor.check_length()
    if tensor.quant is not None:
        return dequantize_apart(tensor, tensor.quant)
    decode = _DECODERS.get(tensor.encoding.name)
    if decode is None:
        raise ModelError(
            f"tensor {tensor.name!r} has type {tensor.encoding.name}, which is not supported"
        )
    blocks = tensor.data.reshape(-1, tensor.encoding.block_bytes)
    return decode(blocks).reshape(tensor.shape)


def _f32(blocks: U8) -> F32:
    values: F32 = blocks.reshape(-1).view(np.float32).copy()
    return values


def _f16(blocks: U8) -> F32:
    return blocks.reshape(-1).view("<f2").astype(np.float32)


def _bf16(blocks: U8) -> F32:
    return (blocks.reshape(-1).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: U8, at: int) -> F32:
    """A float16 of each block as a column [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: U8) -> U8:
    """[n, b] bytes -> [n, 2b]: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: U8) -> U8:
    """[n, 4] bytes -> [n, 32]: 16 where bit i is set."""
    bits: U8 = np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)
    return bits


def _q4_0(blocks: U8) -> F32:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: U8) -> F32:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: U8) -> F32:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: U8) -> F32:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: U8) -> F32:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _k_scales(packed: U8) -> tuple[F32, F32]:
    """Q4_K's and Q5_K's 12 bytes [n, 12] -> 6-bit scales and minimums [n, 8]."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minimums = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _k_values(blocks: U8, codes: U8) -> F32:
    """codes [n, 8, 32] -> scale * code - minimum."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    scale = (_half(blocks, 0) * scales)[:, :, None]
    minimum = (_half(blocks, 2) * minimums)[:, :, None]
    return scale * codes.astype(np.float32) - minimum


def _k_nibbles(packed: U8) -> U8:
    """[n, 128] -> [n, 8, 32]: each 32 bytes hold 32 low nibbles, then 32 high ones."""
    quads = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([quads & 15, quads >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: U8) -> F32:
    return _k_values(blocks, _k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: U8) -> F32:
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = (blocks[:, 16:48].reshape(-1, 1, 32) >> shifts) & np.uint8(1)
    return _k_values(blocks, _k_nibbles(blocks[:, 48:]) | (fifth << np.uint8(4)))


def _q6_k(blocks: U8) -> F32:
    # Halves of 128 values: 64 bytes of low nibbles, 32 bytes with four 2-bit fields each.
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return (_half(blocks, 208) * scales)[:, :, None] * codes


def _q2_k(blocks: U8) -> F32:
    # Halves of 128 values: 32 bytes with four 2-bit fields each. A scale byte: scale, minimum.
    codes = _two_bits(blocks[:, 16:80])
    scales = (_half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32))[:, :, None]
    minimums = (_half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32))[:, :, None]
    values: F32 = scales * codes.reshape(-1, 16, 16).astype(np.float32) - minimums
    return values


def _two_bits(packed: U8) -> U8:
    """[n, 64] -> [n, 2, 4, 32]."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    fields: U8 = (packed.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    return fields


def _q3_k(blocks: U8) -> F32:
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
    third = (blocks[:, :32].reshape(-1, 1, 1, 32) >> shifts) & np.uint8(1)
    codes = (_two_bits(blocks[:, 32:96]) | (third << np.uint8(2))).reshape(-1, 16, 16)
    low = _nibbles(blocks[:, 96:104])
    high = (blocks[:, 104:108].reshape(-1, 1, 4) >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    scales = (low | (high.reshape(-1, 16) << 4)).astype(np.float32) - 32
    values: F32 = (_half(blocks, 108) * scales)[:, :, None] * (codes.astype(np.float32) - 4)
    return values


_NL: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_E2M1_DOUBLED: Final = np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32
)


def _iq4_nl(blocks: U8) -> F32:
    values: F32 = _half(blocks, 0) * _NL[_nibbles(blocks[:, 2:])]
    return values


def _iq4_xs(blocks: U8) -> F32:
    codes = blocks[:, 8:].reshape(-1, 8, 16)
    values = _NL[np.concatenate([codes & 15, codes >> 4], axis=2)]
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    shifts = np.arange(0, 16, 2).astype(np.uint16)
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> shifts & 3
    scales = (low | (high.astype(np.uint8) << 4)).astype(np.float32) - 32
    result: F32 = (_half(blocks, 0) * scales)[:, :, None] * values
    return result


def _mxfp4(blocks: U8) -> F32:
    scales = np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127)
    values: F32 = scales * _E2M1_DOUBLED[_nibbles(blocks[:, 1:])]
    return values


_DECODERS: Final[dict[str, Callable[[U8], F32]]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    **IQ_DECODERS,
}
