"""compressed-tensors' packed INT4: codes plus 8, low nibble first, in words of 32 bits or in bytes.

weight_shape tells the columns without the padding of the last word. Zero points are packed along
the rows, eight to a word, and are plus 8 too.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.weights.act_order import is_sortable
from kt.weights.apart import unpack_nibbles
from kt.weights.encodings import U4
from kt.weights.formats.gptq import group_order
from kt.weights.formats.module import Module, array, four_bit_format, groups, scale_type
from kt.weights.quant import Bytes, Quant, Zeros
from kt.weights.tensor import Tensor


def build(module: Module, *, group: int, symmetric: bool) -> Tensor:
    """group: columns of a scale, 0: whole rows. Raises ModelError."""
    data = module.codes("I32", "U8")
    *lead, n, words = data.shape
    room = words * (8 if data.encoding.name == "I32" else 2)
    k = _columns(module, n, room)
    shape, block = (*lead, n, k), (1, group or k)
    scale = module.part("scale", "scales")
    kind = scale_type(scale)
    packed = four_bit_format(block[1], k, kind, zeros=not symmetric)
    if not packed:
        raise ModelError(f"{module.name}: groups of {group} columns are not supported")
    scales = module.scales(scale, groups(shape, block))
    zeros = None if symmetric else _zeros(module, scales.shape)
    order = group_order(module, k, block[1])
    if order is not None and not is_sortable(order, block[1]):
        packed = "F32"
    return module.tensor(U4, shape, Quant(packed, scales, kind, block, zeros, order=order))


def _columns(module: Module, n: int, room: int) -> int:
    if "shape" not in module.parts:
        return room
    tensor = module.parts["shape"]
    shape = array(tensor).reshape(-1).tolist()
    if len(shape) < 2 or shape[-2] != n or not 0 < shape[-1] <= room:
        raise ModelError(f"{tensor.name} = {shape} does not fit {n} rows of {room} codes")
    return int(shape[-1])


def _zeros(module: Module, shape: tuple[int, ...]) -> Zeros:
    tensor = module.part("zeros", "zero points")
    *lead, n, count = shape
    wanted = (*lead, -(-n // 8), count)
    if tensor.encoding.name != "I32" or tensor.shape != wanted:
        raise ModelError(
            f"{tensor.name} is {tensor.encoding.name} {list(tensor.shape)}, "
            f"{module.name} needs I32 {list(wanted)}"
        )
    return Zeros(array(tensor), partial(_unpack_zeros, n=n))


def _unpack_zeros(words: npt.NDArray[np.int32], *, n: int) -> Bytes:
    """int32 [..., n / 8, groups] -> bytes [..., n, groups]."""
    *lead, rows, count = words.shape
    turned = np.ascontiguousarray(words.reshape(-1, rows, count).transpose(0, 2, 1))
    nibbles = unpack_nibbles(turned.view(np.uint8).reshape(-1, rows * 4))
    zeros = nibbles.reshape(-1, count, rows * 8).transpose(0, 2, 1)[:, :n]
    return np.ascontiguousarray(zeros.reshape(*lead, n, count))
