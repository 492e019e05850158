"""GPTQ: codes of 4 or 8 bits in int32 words along the columns, a scale and zero point per group.

Zero points of checkpoint_format "gptq" are stored minus one, those of "gptq_v2" as they are. "sym"
says that all are in the middle of the codes; where it lies, packing refuses (engine/sources.py).
With act-order, a column's group is what g_idx says (act_order.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.weights.act_order import is_sortable
from kt.weights.apart import unpack_nibbles
from kt.weights.encodings import GPTQ, GPTQ8
from kt.weights.fields import Fields
from kt.weights.formats.module import Module, Scheme, array, four_bit_format, groups, scale_type
from kt.weights.quant import SCALE_DTYPES, Bytes, Quant, Zeros
from kt.weights.tensor import Tensor

ENDINGS = {".qweight": "data", ".qzeros": "zeros", ".scales": "scale", ".g_idx": "order"}

# How the codes were found, not what they mean.
_NOTED = (
    "batch_size block_name_to_quantize cache_block_outputs damp_percent dataset exllama_config "
    "lm_head max_input_length meta model_seqlen module_name_preceding_first_block "
    "modules_in_block_to_quantize modules_to_not_convert pad_token_id pack_dtype quantizer "
    "static_groups sym tokenizer true_sequential use_cuda_fp16 use_exllama desc_act "
    "disable_exllama backend model_file_base_name model_name_or_path is_marlin_format"
).split()


def scheme(fields: Fields) -> Scheme:
    """quant_method gptq."""
    bits = fields.integer("bits")
    fields.expect("bits", 4, 8)
    symmetric = fields.flag("sym", bits == 8)
    if bits == 8 and not symmetric:
        raise fields.refuse("sym", "8 bits with zero points")
    fields.expect("checkpoint_format", "gptq", "gptq_v2")
    fields.expect("pack_dtype", "int32")
    for key in _NOTED:
        fields.get(key)
    if any(not rule.startswith("-:") for rule in fields.section("dynamic")):
        raise fields.refuse("dynamic", "other settings for some modules")
    group = group_size(fields)
    plus = 0 if fields.get("checkpoint_format") == "gptq_v2" else 1
    fields.finish()
    return Scheme(ENDINGS, partial(_build, bits=bits, group=group, plus=plus, zeros=not symmetric))


def group_size(fields: Fields) -> int:
    """Columns of a group; 0: whole rows. Raises ModelError."""
    size = fields.get("group_size", -1)
    return 0 if size == -1 else fields.integer("group_size")


def _build(module: Module, *, bits: int, group: int, plus: int, zeros: bool) -> Tensor:
    data = module.codes("I32")
    if len(data.shape) != 2:
        raise ModelError(f"{data.name} {list(data.shape)}: stacks of words are not supported")
    k, n = data.shape[0] * 32 // bits, data.shape[1]
    kind = scale_type(module.part("scale", "scales"))
    packed = four_bit_format(group or k, k, kind, zeros=zeros)
    if not packed:
        raise ModelError(f"{module.name}: groups of {group} columns are not supported")
    if bits == 8:
        if kind != "F16":
            raise ModelError(f"{module.name}: {kind} scales of 8-bit codes are not supported")
        packed = packed.replace("I4", "I8")
    block = (1, group or k)
    scales = transposed_scales(module, (n, k), block)
    words = array(zero_words(module, (n, k), block, bits))
    points = Zeros(words, partial(_zeros, bits=bits, plus=plus))
    order = group_order(module, k, block[1])
    if order is not None and not is_sortable(order, block[1]):
        packed = "F32"
    quant = Quant(packed, scales, kind, block, points, order=order)
    return module.tensor(GPTQ if bits == 4 else GPTQ8, (n, k), quant)


def transposed_scales(
    module: Module, shape: tuple[int, int], block: tuple[int, int]
) -> npt.NDArray[Any]:
    """Scales [n, groups] of a file that has them the other way round. Raises ModelError."""
    tensor = module.part("scale", "scales")
    wanted = groups(shape, block)[::-1]
    if tensor.shape != wanted:
        raise ModelError(
            f"{tensor.name} has shape {list(tensor.shape)}, {module.name} needs {list(wanted)}"
        )
    values = tensor.data.view(SCALE_DTYPES[scale_type(tensor)])
    turned: npt.NDArray[Any] = values.reshape(wanted).T
    return turned


def zero_words(
    module: Module, shape: tuple[int, int], block: tuple[int, int], bits: int = 4
) -> Tensor:
    """qzeros, int32 [groups, words]. Raises ModelError."""
    tensor = module.part("zeros", "zero points (qzeros)")
    wanted = (-(-shape[1] // block[1]), -(-shape[0] * bits // 32))
    if tensor.shape != wanted or tensor.encoding.name != "I32":
        raise ModelError(
            f"{tensor.name} is {tensor.encoding.name} {list(tensor.shape)}, "
            f"{module.name} needs I32 {list(wanted)}"
        )
    return tensor


def _zeros(words: npt.NDArray[np.int32], *, bits: int, plus: int) -> Bytes:
    zeros = words.view(np.uint8) if bits == 8 else unpack_nibbles(words.view(np.uint8))
    result: Bytes = zeros.T + np.uint8(plus)
    return result


def group_order(module: Module, k: int, group: int) -> npt.NDArray[np.int32] | None:
    """Each column's group; None if groups are runs of columns. Raises ModelError."""
    tensor = module.parts.get("order")
    if tensor is None or group >= k:
        return None
    order = array(tensor)
    if order.shape != (k,) or order.min() < 0 or order.max() >= -(-k // group):
        raise ModelError(f"{tensor.name} does not give each of {k} columns a group of {group}")
    if np.array_equal(order, np.arange(k) // group):
        return None
    return order
