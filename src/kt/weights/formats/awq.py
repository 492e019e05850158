"""AWQ: 4-bit codes in int32 words along the rows of the matrix, nibbles in the order 0 2 4 6 1 3 5
7, a scale and zero point per group.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.weights.apart import awq_order, unpack_nibbles
from kt.weights.encodings import AWQ
from kt.weights.fields import Fields
from kt.weights.formats.gptq import group_size, transposed_scales, zero_words
from kt.weights.formats.module import Module, Scheme, array, four_bit_format, scale_type
from kt.weights.quant import Bytes, Quant, Zeros
from kt.weights.tensor import Tensor

ENDINGS = {".qweight": "data", ".qzeros": "zeros", ".scales": "scale"}
_NOTED = (
    "modules_to_not_convert do_fuse fuse_max_seq_len modules_to_fuse exllama_config backend sym"
).split()


def scheme(fields: Fields) -> Scheme:
    """quant_method awq."""
    fields.expect("bits", 4)
    fields.integer("bits")
    fields.expect("version", "gemm", "GEMM")
    fields.expect("zero_point", True, False)
    for key in _NOTED:
        fields.get(key)
    group = group_size(fields)
    fields.finish()
    return Scheme(ENDINGS, partial(_build, group=group))


def _build(module: Module, *, group: int) -> Tensor:
    data = module.codes("I32")
    if len(data.shape) != 2:
        raise ModelError(f"{data.name} {list(data.shape)}: stacks of words are not supported")
    k, n = data.shape[0], data.shape[1] * 8
    kind = scale_type(module.part("scale", "scales"))
    packed = four_bit_format(group or k, k, kind, zeros=True)
    if not packed:
        raise ModelError(f"{module.name}: groups of {group} columns are not supported")
    block = (1, group or k)
    scales = transposed_scales(module, (n, k), block)
    zeros = Zeros(array(zero_words(module, (n, k), block)), _zeros)
    quant = Quant(packed, scales, kind, block, zeros)
    return module.tensor(AWQ, (n, k), quant)


def _zeros(words: npt.NDArray[np.int32]) -> Bytes:
    zeros: Bytes = awq_order(unpack_nibbles(words.view(np.uint8))).T
    return zeros
