"""How a file lays out a layer's experts, discovered from names and shapes, and one matrix per
expert out of it.

Layouts: a tensor per expert and part; a stack [E, n_out, n_in] per part (GGUF, some safetensors);
gate and up fused, first all gate rows, then all up rows ([2I, H] or [E, 2I, H]). Whatever could be
read in two ways is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kt.errors import ModelError
from kt.weights.tensor import Tensor

# Families whose fused tensors are known to hold gate rows first; gpt-oss, say, interleaves them
# under the same name.
GATE_FIRST: Final = frozenset({"qwen3_moe"})

Parts = Mapping[
    tuple[str, int | None], Tensor
]  # (part, expert index or None for a stack) -> tensor


def expert_matrices(parts: Parts, part: str, *, layer: int, model_type: str) -> list[Tensor]:
    """The matrices of `part` (gate, up or down), one per expert in order. Raises ModelError."""
    where = f"experts of layer {layer}"
    fused = part != "down" and any(name == "gate_up" for name, _ in parts)
    if fused and any(name == part for name, _ in parts):
        raise ModelError(f"{where}: {part} is there both alone and fused with the other")
    if fused and model_type not in GATE_FIRST:
        raise ModelError(
            f"{where}: gate and up are fused in an order that is not known for {model_type!r}"
        )
    matrices = _matrices(parts, "gate_up" if fused else part, where)
    _check_orientation(parts, where)
    return [_half(matrix, part, where) for matrix in matrices] if fused else matrices


def _matrices(parts: Parts, part: str, where: str) -> list[Tensor]:
    stack = parts.get((part, None))
    single = {
        index: tensor
        for (name, index), tensor in parts.items()
        if name == part and index is not None
    }
    if stack is not None and single:
        raise ModelError(f"{where}: {part} is there both as a stack and per expert")
    if stack is not None:
        if len(stack.shape) != 3:
            raise ModelError(
                f"{where}: {stack.name} has shape {list(stack.shape)}, not [experts, out, in]"
            )
        return [stack.matrix(index) for index in range(stack.shape[0])]
    missing = sorted(set(range(max(single, default=0) + 1)) - set(single))
    if missing:
        raise ModelError(f"{where}: {part} is missing for expert(s) {missing[:20]}")
    return [single[index] for index in range(len(single))]


def _half(matrix: Tensor, part: str, where: str) -> Tensor:
    if len(matrix.shape) != 2 or matrix.shape[0] % 2:
        raise ModelError(
            f"{where}: {matrix.name} {list(matrix.shape)} does not split into gate and up"
        )
    half = matrix.shape[0] // 2
    return matrix.rows(0, half) if part == "gate" else matrix.rows(half, 2 * half)


def _check_orientation(parts: Parts, where: str) -> None:
    """Stacks of some families hold transposed matrices ([E, in, out]). Gate and down tell them
    apart.

    With [out, in], gate [I, H] and down [H, I] (fused: [2I, H] and [H, I]). Transposed and fused
    that would be [H, 2I] and [I, H]. Both fit only where the numbers coincide, and then the down
    projection decides.
    """
    down = next((tensor.shape[-2:] for (name, _), tensor in parts.items() if name == "down"), None)
    fused = next(
        (tensor.shape[-2:] for (name, _), tensor in parts.items() if name == "gate_up"), None
    )
    if not fused or not down or len(fused) != 2 or len(down) != 2:
        return
    straight = fused == (2 * down[1], down[0])
    transposed = fused == (down[1], 2 * down[0])
    if transposed and not straight:
        raise ModelError(
            f"{where}: matrices are stored transposed ([in, out]), which is not supported"
        )
    if not straight:
        raise ModelError(
            f"{where}: gate_up {list(fused)} and down {list(down)} do not fit together"
        )
