"""GPTQ's act-order: a column's group is what g_idx says, so groups are no runs of columns.

With its columns sorted by group such a matrix is an ordinary one, if what it reads comes in that
order: the step program gathers it so (kt_op.order), or, in front of a down, gate and up have their
rows in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from kt.errors import ModelError
from kt.weights.apart import raw_codes
from kt.weights.encodings import GPTQ, GPTQ8, INT8, U4
from kt.weights.quant import I32, Bytes, Zeros
from kt.weights.tensor import Tensor

Experts = dict[tuple[str, int | None], Tensor]
"""(part, number) -> matrix."""

READERS: Final = (("q", "k", "v"), ("gate", "up"))
"""Parts of a layer that are one operation, which gathers its input once for all of them."""
MATES: Final = {part: readers for readers in READERS for part in readers}
"""Such a part -> all of its operation, itself included."""


def is_shuffled(tensor: Tensor) -> bool:
    """Whether a matrix is packed with its columns in another order than its input has."""
    quant = tensor.quant
    if tensor.columns is not None:
        return True
    return quant is not None and quant.order is not None and tensor.packed_format != "F32"


def columns_of(tensor: Tensor) -> I32 | None:
    """The column of the input that column i of the packed matrix reads; None: i."""
    if tensor.columns is not None:
        return tensor.columns
    if tensor.quant is None or tensor.quant.order is None or not is_shuffled(tensor):
        return None
    return np.argsort(tensor.quant.order, kind="stable").astype(np.int32)


def moved(tensor: Tensor, rows: I32 | None = None) -> Tensor:
    """The matrix with its columns sorted by group, and its rows as `rows` has them. Raises
    ModelError if its rows do not stand alone.
    """
    columns, quant = columns_of(tensor), tensor.quant
    if columns is None and rows is None:
        return tensor
    if not rows_stand_alone(tensor):
        raise ModelError(f"{tensor.name}: rows in {tensor.encoding.name} cannot change places")
    row = slice(None) if rows is None else rows
    if quant is None:
        values = tensor.data.reshape(tensor.shape[0], -1)[row]
        return replace(tensor, data=np.ascontiguousarray(values).reshape(-1))
    if tensor.encoding is GPTQ:
        data = _moved_words(tensor.data, tensor.shape[0], columns, rows)
    else:
        codes = raw_codes(tensor)[row]
        if columns is not None:
            codes = np.take(codes, columns, axis=1)
        data = _pairs(codes) if tensor.encoding is U4 else codes ^ np.uint8(0x80)
    encoding = INT8 if tensor.encoding is GPTQ8 else tensor.encoding
    zeros = quant.zeros and Zeros(quant.zeros()[row], np.asarray)
    order = quant.order if columns is None else None
    quant = replace(quant, scales=quant.scales[row], zeros=zeros, order=order)
    return replace(tensor, encoding=encoding, data=data.reshape(-1), quant=quant)


def _pairs(codes: Bytes) -> Bytes:
    """4-bit codes [n, k] -> bytes, the low nibble first."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    pairs: Bytes = even[:, 0::2] | even[:, 1::2] << np.uint8(4)
    return pairs


def _moved_words(data: Bytes, n: int, columns: I32 | None, rows: I32 | None) -> Bytes:
    """GPTQ's words [k / 8, n], column and rows moved. All steps but two copy whole lines of n."""
    pairs = np.ascontiguousarray(data.reshape(-1, n, 4).transpose(0, 2, 1)).reshape(-1, n)
    if columns is not None:
        codes = np.empty((len(pairs), 2, n), np.uint8)
        np.bitwise_and(pairs, 15, out=codes[:, 0])
        np.right_shift(pairs, 4, out=codes[:, 1])
        codes = codes.reshape(-1, n)[columns].reshape(-1, 2, n)
        pairs = codes[:, 0] | codes[:, 1] << np.uint8(4)
    if rows is not None:
        pairs = np.take(pairs, rows, axis=1)
    return np.ascontiguousarray(pairs.reshape(-1, 4, n).transpose(0, 2, 1)).reshape(-1)


def rows_stand_alone(tensor: Tensor) -> bool:
    """Whether every row has its own values and scales."""
    if tensor.quant is None:
        return tensor.encoding.block_elements == 1
    return tensor.encoding in (U4, GPTQ, GPTQ8) and tensor.quant.block[0] == 1


def settle_orders(roles: dict[str, Tensor], experts: Mapping[int, Experts]) -> None:
    """Makes those matrices float32, which holds their values exactly, whose order cannot be had.
    roles: all other tensors by role. experts: of every layer.
    """
    layers: dict[str, dict[str, Tensor]] = {}
    for role, tensor in roles.items():
        layer, _, part = role.rpartition(".")
        layers.setdefault(layer, {})[part] = tensor
    for layer, parts in layers.items():
        for part in _unsettled(parts):
            role = f"{layer}.{part}" if layer else part
            roles[role] = replace(roles[role], load_as="F32")
    for matrices in experts.values():
        bad: set[str] = set()
        for number in {index for _, index in matrices}:
            bad |= _unsettled({part: t for (part, i), t in matrices.items() if i == number})
        for part in ("gate", "up"):
            if len({t.packed_format for (name, _), t in matrices.items() if name == part}) > 1:
                bad |= {"gate", "up"}  # such experts become float32, in the order of the file
        for key, tensor in matrices.items():  # one operation computes all experts
            if key[0] in bad and is_shuffled(tensor):
                matrices[key] = replace(tensor, load_as="F32")


def _unsettled(parts: Mapping[str, Tensor]) -> set[str]:
    """The parts of a layer, or of one expert, that are in act-order in vain: what reads the same
    input is in another order, or the rows of gate and up cannot move for down.
    """
    bad: set[str] = set()
    for readers in READERS:
        found = [parts[part] for part in readers if part in parts]
        orders = [tensor.quant.order if tensor.quant else None for tensor in found]
        if not all(_same(orders[0], order) for order in orders[1:]):
            bad |= {part for part in readers if part in parts and is_shuffled(parts[part])}
    before = [parts[part] for part in ("gate", "up") if part in parts]
    if "down" in parts and is_shuffled(parts["down"]) and not all(map(rows_stand_alone, before)):
        bad.add("down")
    return bad


def _same(first: I32 | None, second: I32 | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def is_sortable(order: I32, group: int) -> bool:
    """Whether all groups but the last have `group` columns."""
    sizes = np.bincount(order)
    return bool((sizes[:-1] == group).all()) and 0 < sizes[-1] <= group
