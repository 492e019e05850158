"""A tensor of a checkpoint as kt_pack reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kt.errors import ModelError
from kt.kernels.library import Source
from kt.weights.act_order import moved
from kt.weights.apart import raw_codes
from kt.weights.dequantize import dequantize
from kt.weights.encodings import COLUMN_WORDS, GPTQ, GPTQ8, INT8
from kt.weights.iq import IQ_DECODERS
from kt.weights.iq_grids import grid_codes
from kt.weights.quant import I32, Bytes, Quant
from kt.weights.tensor import Tensor

# Scale types of kt.h; bytes mean what the packed format says.
_SCALE_TYPES: Final = {"F32": 0, "F16": 1, "BF16": 30, "E8M0": 200, "E4M3": 200}
_BYTE_FORMATS: Final = ("F8_MX", "F4_MX", "F4_NV")


def source_of(tensor: Tensor, packed_format: str, rows: I32 | None = None) -> Source:
    """The source of a matrix [n, k], its columns sorted if it is in act-order, its rows as `rows`
    has them. Codes that are not of `packed_format` become float32 first.
    """
    if packed_format == tensor.packed_format:
        tensor = moved(tensor, rows)
    elif rows is not None:
        raise ModelError(f"{tensor.name}: rows of {packed_format} cannot change places")
    quant = tensor.quant
    n = tensor.shape[0]
    if packed_format == tensor.encoding.packed_format:
        name = tensor.encoding.name
        grid = grid_codes(name) if name in IQ_DECODERS else None
        return Source(tensor.data, tensor.encoding.id, tensor.data.size // n, grid=grid)
    if quant is None or packed_format != quant.packed_format or packed_format == "F32":
        values = dequantize(tensor)
        return Source(values, 0, values.nbytes // n)
    if tensor.encoding is GPTQ8:
        codes = raw_codes(tensor) ^ np.uint8(0x80)
        tensor = replace(tensor, encoding=INT8, data=codes.reshape(-1))
    return _apart(tensor, quant)


def _apart(tensor: Tensor, quant: Quant) -> Source:
    scales, scale_type = np.ascontiguousarray(quant.scales), quant.scale_type
    if _SCALE_TYPES[scale_type] == 200 and quant.packed_format not in _BYTE_FORMATS:
        scales, scale_type = quant.scale_values(), "F32"
    return Source(
        tensor.data,
        tensor.encoding.id,
        _row_bytes(tensor),
        scales=scales,
        scale_type=_SCALE_TYPES[scale_type],
        scale_stride=scales.shape[1],
        scale_block=quant.block,
        zeros=_zeros(tensor, quant),
    )


def _zeros(tensor: Tensor, quant: Quant) -> Bytes | None:
    """Zero points, for a packed format that has some; others mean the middle of the codes."""
    if quant.zeros is None:
        return None
    zeros = quant.zeros()
    if quant.packed_format.startswith("I4_Z"):
        return zeros
    middle = 128 if tensor.encoding is INT8 else 8
    if (zeros != middle).any():
        raise ModelError(
            f"{tensor.name} has zero points other than {middle}; config.json says it has none",
            hint='If the checkpoint is sound, set "sym": false in its quantization_config.',
        )
    return None


def _row_bytes(tensor: Tensor) -> int:
    """From one row of the file to the next: of codes, or of words."""
    n = tensor.shape[0]
    if tensor.encoding.id in COLUMN_WORDS:
        return n * 4 if tensor.encoding is GPTQ else n // 2
    return tensor.data.size // n
