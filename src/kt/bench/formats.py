"""The formats that weights are benched in: their names, and what they are packed from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final, Literal

from kt.errors import UsageError
from kt.placement.budget import KvFormat

Peak = Literal["fma_f32", "dot_int8", "dot_bf16"]
PEAKS: Final[tuple[Peak, ...]] = ("dot_int8", "dot_bf16", "fma_f32")
"""The instruction kinds of kt_peak in native/include/kt.h, lower case."""


@dataclass(frozen=True)
class Format:
    """packed: kt.h's name without KT_. source: the encoding (kt.weights.encodings) that random
    weights are made in; F32 where the kernels round floats themselves, "" where scales lie apart
    from the codes. peak: the instruction kind
    that computes it. names: what else users call it."""

    packed: str
    source: str
    peak: Peak
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As in --format and in JSON."""
        return self.packed.lower()


FORMATS: Final[tuple[Format, ...]] = (
    Format("F32", "F32", "fma_f32"),
    Format("F16", "F32", "fma_f32"),
    Format("BF16", "F32", "dot_bf16"),
    Format("F8_G32", "", "dot_bf16", ("fp8_g32",)),
    Format("F8_G128", "", "dot_bf16", ("fp8",)),
    Format("F8_ROW", "", "dot_bf16", ("fp8_row",)),
    Format("F8_MX", "", "dot_bf16", ("mxfp8",)),
    Format("I8_G32", "F32", "dot_int8", ("int8", "q8_0")),
    Format("I8_G64", "F32", "dot_int8", ("int8_g64",)),
    Format("I8_G128", "F32", "dot_int8", ("int8_g128",)),
    Format("I8_ROW", "", "dot_int8", ("int8_row",)),
    Format("I6_K16", "Q6_K", "dot_int8", ("q6_k",)),
    Format("I5_G32", "Q5_0", "dot_int8", ("q5_0",)),
    Format("I5_G32M", "Q5_1", "dot_int8", ("q5_1",)),
    Format("I5_K32M", "Q5_K", "dot_int8", ("q5_k",)),
    Format("I4_G32", "F32", "dot_int8", ("int4", "q4_0")),
    Format("I4_G64", "F32", "dot_int8", ("int4_g64",)),
    Format("I4_G128", "F32", "dot_int8", ("int4_g128", "gptq")),
    Format("I4_B32", "", "dot_int8", ("int4_b32",)),
    Format("I4_B128", "", "dot_int8", ("int4_b128",)),
    Format("I4_G32M", "F32", "dot_int8", ("q4_1",)),
    Format("I4_G64M", "F32", "dot_int8", ("int4m_g64",)),
    Format("I4_G128M", "F32", "dot_int8", ("int4m_g128",)),
    Format("I4_K32M", "Q4_K", "dot_int8", ("q4_k",)),
    Format("I4_Z32", "", "dot_int8", ("int4_z32",)),
    Format("I4_Z64", "", "dot_int8", ("int4_z64",)),
    Format("I4_Z128", "", "dot_int8", ("int4_z128",)),
    Format("I4_Z128H", "", "dot_int8", ("awq",)),
    Format("I4_NL", "IQ4_NL", "dot_int8", ("iq4_nl",)),
    Format("I4_NLK", "IQ4_XS", "dot_int8", ("iq4_xs",)),
    Format("F4_MX", "MXFP4", "dot_int8", ("mxfp4",)),
    Format("F4_NV", "", "dot_int8", ("nvfp4",)),
    Format("I4_IQ3XXS", "IQ3_XXS", "dot_int8", ("iq3_xxs",)),
    Format("I4_IQ3S", "IQ3_S", "dot_int8", ("iq3_s",)),
    Format("I3_K16", "Q3_K", "dot_int8", ("q3_k",)),
    Format("I3_IQ2XXS", "IQ2_XXS", "dot_int8", ("iq2_xxs",)),
    Format("I3_IQ2", "IQ2_S", "dot_int8", ("iq2_s", "iq2_xs")),
    Format("I3_IQ1M", "IQ1_M", "dot_int8", ("iq1_m",)),
    Format("I2_K16M", "Q2_K", "dot_int8", ("q2_k",)),
    Format("I2_IQ1S", "IQ1_S", "dot_int8", ("iq1_s",)),
)

_BY_PACKED: Final = {row.packed: row for row in FORMATS}
_BY_NAME: Final = {name: row for row in FORMATS for name in (row.name, *row.names)}


def attention_operations(kv_format: KvFormat, pairs: float) -> dict[Peak, float]:
    """Of `pairs` pairs of a query's and a key's dim: two operations for the score and two for the
    value. int8 values are multiplied by probabilities in two parts."""
    return {"dot_bf16": 4 * pairs} if kv_format == "bf16" else {"dot_int8": 6 * pairs}


def find(name: str) -> Format:
    """The format that a user calls `name`, in any case. Raises UsageError."""
    found = _BY_NAME.get(name.lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        meant = f"Did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"--format {name}: there is no such format", hint=f"{meant}There are {listing()}."
        )
    return found


def of_packed(packed: str) -> Format:
    """The row of a packed format, by kt.h's name without KT_."""
    return _BY_PACKED[packed]


def listing() -> str:
    """All names, as one line."""
    return ", ".join(" = ".join((row.name, *row.names)) for row in FORMATS)
