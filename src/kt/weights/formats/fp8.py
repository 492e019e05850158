"""FP8 E4M3 with scales in float32 or powers of two: DeepSeek's blocks, one per row, one per matrix.

`<name>_scale_inv` and `<name>_scale` both multiply the codes.
"""

from __future__ import annotations

from functools import partial

from kt.errors import ModelError
from kt.weights.encodings import FP8
from kt.weights.fields import Fields
from kt.weights.formats.module import Module, Scheme, groups, scale_type, whole_rows
from kt.weights.quant import Quant
from kt.weights.tensor import Tensor

ENDINGS = {"_scale_inv": "scale", "_scale": "scale"}
Block = tuple[int, int]

# What they say concerns activations, or follows from the tensors that are there.
_NOTED = ("modules_to_not_convert", "ignored_layers", "activation_scheme", "activation_scale_ub")


def scheme(fields: Fields) -> Scheme:
    """quant_method fp8 and fbgemm_fp8."""
    fields.expect("fmt", "e4m3", "float8_e4m3fn")
    fields.expect("weight_format", "e4m3", "float8_e4m3fn")
    powers = fields.get("scale_fmt")
    fields.expect("scale_fmt", "float", "ue8m0")
    for key in (*_NOTED, "dequantize"):
        fields.get(key)
    block = block_shape(fields, "weight_block_size")
    fields.finish()
    return Scheme(ENDINGS, partial(build, block=block, powers=powers == "ue8m0"))


def mx_scheme(fields: Fields) -> Scheme:
    """quant_method mxfp8: one power of two for 32 columns."""
    for key in (*_NOTED, "fmt", "scale_fmt"):
        fields.get(key)
    block = block_shape(fields, "weight_block_size") or (1, 32)
    fields.finish()
    return Scheme(ENDINGS, partial(build, block=block, powers=True))


def block_shape(fields: Fields, key: str) -> Block | None:
    """Rows and columns that share a scale; None if the field is absent. Raises ModelError."""
    size = fields.integers(key)
    if fields.get(key) is None:
        return None
    if len(size) != 2 or min(size) < 1:
        raise fields.refuse(key, "two whole numbers are needed")
    return size[0], size[1]


def build(module: Module, *, block: Block | None, powers: bool = False) -> Tensor:
    """block: rows and columns of a scale; None: one scale per row or per matrix. powers: scales
    that are bytes stand for powers of two.
    """
    shape = module.codes("F8_E4M3").shape
    scale = module.part("scale", "scale")
    kind = "E8M0" if powers and scale.encoding.name == "U8" else scale_type(scale)
    if kind == "E4M3":
        raise ModelError(f"{scale.name} is F8_E4M3, which is not supported for 8-bit codes")
    if block is None:
        block = whole_rows(scale, shape)
        packed = "F8_ROW"
    else:
        packed = _packed_format(module, block, kind, shape[-1])
    scales = module.scales(scale, groups(shape, block), kind)
    return module.tensor(FP8, shape, Quant(packed, scales, kind, block))


def _packed_format(module: Module, block: Block, kind: str, k: int) -> str:
    if block[1] % 128 == 0 or block[1] >= k:
        return "F8_G128"
    if block[1] % 32 == 0:
        return "F8_MX" if kind == "E8M0" else "F8_G32"
    raise ModelError(
        f"{module.name}: scales for blocks of {block[0]} x {block[1]} are not supported "
        "(supported: multiples of 32 columns)"
    )
