"""NVFP4: FP4 E2M1 codes, an FP8 E4M3 scale for 16 columns, a float32 factor for the matrix."""

from __future__ import annotations

from math import prod

from kt.errors import ModelError
from kt.weights.encodings import U4
from kt.weights.formats.module import Module, array, groups
from kt.weights.quant import F32, Quant
from kt.weights.tensor import Tensor


def build(module: Module, *, divides: bool) -> Tensor:
    """divides: the factor was used to make the scales large, and values are divided by it
    (compressed-tensors' weight_global_scale); else it multiplies (modelopt's weight_scale_2).
    Raises ModelError.
    """
    *lead, n, pairs = module.codes("U8").shape
    shape = (*lead, n, pairs * 2)
    scale = module.part("scale", "scales")
    if scale.encoding.name != "F8_E4M3":
        raise ModelError(f"{scale.name} is {scale.encoding.name}, not F8_E4M3")
    factor = module.part("factor", "global scale")
    quant = Quant(
        "F4_NV",
        module.scales(scale, groups(shape, (1, 16)), "E4M3"),
        "E4M3",
        (1, 16),
        factor=_factor(factor, tuple(lead)),
        divides=divides,
    )
    return module.tensor(U4, shape, quant)


def _factor(tensor: Tensor, lead: tuple[int, ...]) -> F32:
    if tensor.encoding.name != "F32" or prod(tensor.shape) != prod(lead):
        raise ModelError(
            f"{tensor.name} is {tensor.encoding.name} {list(tensor.shape)}, not one F32 per matrix"
        )
    return array(tensor).reshape(lead or (1,))
