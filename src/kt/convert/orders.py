"""GPTQ's act-order in a conversion: whose columns and rows are stored in another order.

A matrix that keeps its format is packed with its columns sorted by group. What reads the same input
gets that order too, since the step program gathers an input once; in front of a down, gate and up
have their rows in it. The order is stored once, as a tensor that the manifest's records name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kt.weights.act_order import MATES, columns_of, is_shuffled
from kt.weights.packed_orders import COLUMNS
from kt.weights.quant import I32
from kt.weights.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Order:
    """The order of the columns of `tensors`, matrices that have one each. name: of the tensor that
    holds it, int32 [matrices, columns].
    """

    name: str
    tensors: Sequence[Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.tensors), self.tensors[0].shape[1]

    @property
    def nbytes(self) -> int:
        count, k = self.shape
        return 4 * count * k

    def of(self, index: int) -> I32:
        """Of matrix `index`: the column of the source that column i is."""
        tensor = self.tensors[index]
        columns = columns_of(tensor)
        return np.arange(tensor.shape[1], dtype=np.int32) if columns is None else columns


@dataclass(frozen=True)
class Orders:
    """Role of a matrix -> the order of its columns, of its rows."""

    columns: dict[str, Order]
    rows: dict[str, Order]

    @property
    def stored(self) -> list[Order]:
        """All of them, by name."""
        return sorted({*self.columns.values(), *self.rows.values()}, key=lambda order: order.name)


def orders_of(kept: dict[str, Sequence[Tensor]], roles: Sequence[str]) -> Orders:
    """kept: the matrices that keep their format, by role. roles: of all matrices of a file."""
    found = Orders({}, {})
    for role, tensors in kept.items():
        if role in found.columns or not any(map(is_shuffled, tensors)):
            continue
        layer, dot, part = role.rpartition(".")
        readers = [f"{layer}{dot}{name}" for name in MATES.get(part, (part,))]
        there = [name for name in readers if name in roles]
        order = Order(there[0] + COLUMNS, tensors)
        found.columns.update((name, order) for name in there)
        if part == "down":
            found.rows.update((f"{layer}{dot}{name}", order) for name in ("gate", "up"))
    return found
