"""What `--format` may say, and the packed format that each matrix gets."""

from __future__ import annotations

from typing import Final

from kt.placement.budget import packed_bytes
from kt.weights.tensor import Tensor

TARGETS: Final[dict[str, str]] = {
    "int8": "I8_G32",
    "int4": "I4_G32",
    "int4m": "I4_G32M",
    "fp8": "F8_G128",
    "bf16": "BF16",
    "f16": "F16",
    "native": "",
}
"""Value of --format -> packed format (kt.h's name without KT_); "": each matrix keeps its own."""

SEARCHED: Final = frozenset({"I4_G32", "I4_G32M"})
"""Formats whose scales are searched for."""

# The largest relative error (root of the sum of squares) that correct rounding can leave: half a
# step where all values of a group are as large as its largest, a whole one beside code 7 of INT4.
ERROR_LIMITS: Final = {
    "F32": 0.0,
    "F16": 2**-11,
    "BF16": 2**-8,
    "F8_G128": 2**-4,
    "I8_G32": 32**0.5 / 2 / 127,
    "I4_G32": 32**0.5 / 8,
    "I4_G32M": 32**0.5 / 15,
}


def packed_format(role: str, tensor: Tensor, target: str, *, experts_only: bool) -> str:
    """The packed format of a matrix. role: "layers.3.experts.up" for experts.

    Routers stay float32. Embeddings and the output head are not cut to 4 bits: they get 8, or keep
    their own format where that takes less.
    """
    own, wanted = tensor.packed_format, TARGETS[target]
    if role.endswith(".router"):
        return "F32"
    if not wanted or (experts_only and ".experts." not in role):
        return own
    if wanted in SEARCHED and role in ("embed", "lm_head"):
        n, k = tensor.shape
        wanted = TARGETS["int8"]
        return own if packed_bytes(own, n, k) <= packed_bytes(wanted, n, k) else wanted
    return wanted
