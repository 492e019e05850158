"""The encodings of tensor data: GGUF's type numbers, their block sizes, and the packed format each
becomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Encoding:
    """How values lie in a file: `block_elements` consecutive values of a row take `block_bytes`
    bytes.

    id is GGUF's type number (also used for the safetensors dtypes). packed_format is the native
    format (kt.h's name without KT_) that the values are loaded as; "" if kt does not compute with
    this encoding.
    """

    name: str
    id: int
    block_elements: int
    block_bytes: int
    packed_format: str = ""

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape` (outermost first). Raises ValueError if a row is not whole
        blocks.
        """
        columns = shape[-1] if shape else 1
        if columns % self.block_elements:
            raise ValueError(f"rows of {columns} are not whole blocks of {self.block_elements}")
        return prod(shape) // self.block_elements * self.block_bytes


ENCODINGS: tuple[Encoding, ...] = (
    Encoding("F32", 0, 1, 4, "F32"),
    Encoding("F16", 1, 1, 2, "F16"),
    Encoding("Q4_0", 2, 32, 18, "I4_G32"),
    Encoding("Q4_1", 3, 32, 20, "I4_G32M"),
    Encoding("Q5_0", 6, 32, 22, "I5_G32"),
    Encoding("Q5_1", 7, 32, 24, "I5_G32M"),
    Encoding("Q8_0", 8, 32, 34, "I8_G32"),
    Encoding("Q8_1", 9, 32, 40),
    Encoding("Q2_K", 10, 256, 84, "I2_K16M"),
    Encoding("Q3_K", 11, 256, 110, "I3_K16"),
    Encoding("Q4_K", 12, 256, 144, "I4_K32M"),
    Encoding("Q5_K", 13, 256, 176, "I5_K32M"),
    Encoding("Q6_K", 14, 256, 210, "I6_K16"),
    Encoding("Q8_K", 15, 256, 292),
    Encoding("IQ2_XXS", 16, 256, 66, "I3_IQ2XXS"),
    Encoding("IQ2_XS", 17, 256, 74, "I3_IQ2"),
    Encoding("IQ3_XXS", 18, 256, 98, "I4_IQ3XXS"),
    Encoding("IQ1_S", 19, 256, 50, "I2_IQ1S"),
    Encoding("IQ4_NL", 20, 32, 18, "I4_NL"),
    Encoding("IQ3_S", 21, 256, 110, "I4_IQ3S"),
    Encoding("IQ2_S", 22, 256, 82, "I3_IQ2"),
    Encoding("IQ4_XS", 23, 256, 136, "I4_NLK"),
    Encoding("I8", 24, 1, 1),
    Encoding("I16", 25, 1, 2),
    Encoding("I32", 26, 1, 4),
    Encoding("I64", 27, 1, 8),
    Encoding("F64", 28, 1, 8),
    Encoding("IQ1_M", 29, 256, 56, "I3_IQ1M"),
    Encoding("BF16", 30, 1, 2, "BF16"),
    Encoding("TQ1_0", 34, 256, 54),
    Encoding("TQ2_0", 35, 256, 66),
    Encoding("MXFP4", 39, 32, 17, "F4_MX"),
    Encoding("NVFP4", 40, 64, 36),
    Encoding("Q1_0", 41, 128, 18),
)

# Codes whose scales lie apart (kt_source_encoding in native/include/kt.h).
INT8 = Encoding("INT8", 100, 1, 1)
FP8 = Encoding("F8_E4M3", 101, 1, 1)
U4 = Encoding("4-bit", 102, 2, 1)
GPTQ = Encoding("GPTQ", 103, 8, 4)
AWQ = Encoding("AWQ", 104, 8, 4)
GPTQ8 = Encoding("GPTQ of 8 bits", -8, 4, 4)  # kt_pack does not know it: engine/sources.py
COLUMN_WORDS: frozenset[int] = frozenset({GPTQ.id, AWQ.id, GPTQ8.id})
"""Encodings whose words run along the columns of a matrix: its rows do not lie together."""

BY_ID: dict[int, Encoding] = {row.id: row for row in ENCODINGS}
BY_NAME: dict[str, Encoding] = {row.name: row for row in ENCODINGS}
IMPLEMENTED: tuple[str, ...] = tuple(row.name for row in ENCODINGS if row.packed_format)
