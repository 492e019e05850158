"""MXFP4: FP4 E2M1 codes, low nibble first, one power of two for 32 columns.

gpt-oss names: `<name>_blocks` uint8 [..., n, k / 32, 16] and `<name>_scales` [..., n, k / 32].
"""

from __future__ import annotations

from kt.errors import ModelError
from kt.weights.encodings import U4
from kt.weights.fields import Fields
from kt.weights.formats.module import Module, Scheme, groups
from kt.weights.quant import Quant
from kt.weights.tensor import Tensor

ENDINGS = {"_blocks": "data", "_scales": "scale"}


def scheme(fields: Fields) -> Scheme:
    """quant_method mxfp4."""
    fields.get("modules_to_not_convert")
    fields.get("dequantize")
    fields.finish()
    return Scheme(ENDINGS, _blocks)


def _blocks(module: Module) -> Tensor:
    shape = module.codes("U8").shape
    if len(shape) < 3 or shape[-1] != 16:
        raise ModelError(f"{module.parts['data'].name} {list(shape)} holds no blocks of 16 bytes")
    return build(module, (*shape[:-2], shape[-2] * 32))


def build(module: Module, shape: tuple[int, ...]) -> Tensor:
    """A matrix or stack of `shape` whose codes lie in rows of whole bytes. Raises ModelError."""
    scale = module.part("scale", "scales")
    if scale.encoding.name not in ("U8", "F8_E8M0"):
        raise ModelError(f"{scale.name} is {scale.encoding.name}, not bytes of E8M0")
    scales = module.scales(scale, groups(shape, (1, 32)), "E8M0")
    return module.tensor(U4, shape, Quant("F4_MX", scales, "E8M0", (1, 32)))
