"""What `--format` and `--group` may say, and the packed format that each matrix gets."""

from __future__ import annotations

from typing import Final

from kt.errors import UsageError
from kt.placement.budget import packed_bytes
from kt.weights.tensor import Tensor

GROUPED: Final[dict[str, str]] = {"int8": "I8_G{}", "int4": "I4_G{}", "int4m": "I4_G{}M"}
"""Values of --format whose scales are one per --group columns -> packed format (kt.h's name without
KT_)."""
GROUPS: Final = (32, 64, 128)
DEFAULT_GROUP: Final = 32

FIXED: Final[dict[str, str]] = {"fp8": "F8_G128", "bf16": "BF16", "f16": "F16", "native": ""}
"""The other values; "": each matrix keeps its own."""

SEARCHED: Final = frozenset(GROUPED[name].format(g) for name in ("int4", "int4m") for g in GROUPS)
"""Formats whose scales are searched for."""

# The largest relative error (root of the sum of squares) that correct rounding can leave: half a
# step where all values of a group are as large as its largest, a whole one beside code 7 of INT4.
ERROR_LIMITS: Final = {
    "F32": 0.0,
    "F16": 2**-11,
    "BF16": 2**-8,
    "F8_G128": 2**-4,
    **{f"I8_G{group}": group**0.5 / 2 / 127 for group in GROUPS},
    **{f"I4_G{group}": group**0.5 / 8 for group in GROUPS},
    **{f"I4_G{group}M": group**0.5 / 15 for group in GROUPS},
}


def check_group(target: str, group: int | None) -> int | None:
    """Columns of a scale: DEFAULT_GROUP where nothing else is asked for, None for formats that have
    no choice. Raises UsageError.
    """
    if target in GROUPED:
        if group not in (None, *GROUPS):
            raise UsageError(f"--group {group}: choose {', '.join(map(str, GROUPS))}")
        return group or DEFAULT_GROUP
    if group is not None:
        why = {
            "fp8": "fp8 has a scale for 128 columns",
            "native": "native keeps the groups that are there",
        }
        raise UsageError(
            f"--group goes with --format {', '.join(GROUPED)}; "
            f"{why.get(target, f'{target} has no scales')}"
        )
    return None


def target_format(target: str, group: int | None) -> str:
    """The packed format of --format and --group; "" for native."""
    return GROUPED[target].format(group) if target in GROUPED else FIXED[target]


def packed_format(
    role: str, tensor: Tensor, target: str, group: int | None, *, experts_only: bool
) -> str:
    """The packed format of a matrix. role: "layers.3.experts.up" for experts.

    Routers stay float32. Embeddings and the output head are not cut to 4 bits: they get 8, or keep
    their own format where that takes less.
    """
    own, wanted = tensor.packed_format, target_format(target, group)
    if role.endswith(".router"):
        return "F32"
    if not wanted or (experts_only and ".experts." not in role):
        return own
    if wanted in SEARCHED and role in ("embed", "lm_head"):
        n, k = tensor.shape
        wanted = target_format("int8", group)
        return own if packed_bytes(own, n, k) <= packed_bytes(wanted, n, k) else wanted
    return wanted
