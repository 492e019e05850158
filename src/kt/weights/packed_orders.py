"""Orders of columns in a converted folder (act_order.py): which matrix has which, checked.

A record's "columns" and "rows" name the tensor that holds the order of its columns or rows, int32
[matrices, columns]: the column (or row) of the source that each one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from kt.errors import ModelError
from kt.weights.act_order import MATES
from kt.weights.quant import I32
from kt.weights.tensor import Tensor

COLUMNS: Final = ".columns"
"""What follows the role of a matrix in the name of the tensor that holds its order."""

Records = Mapping[str, Mapping[str, Any]]
"""Role -> what the manifest says of a matrix."""

_ORDERED: Final = frozenset({"q", "k", "v", "o", "gate", "up", "down", "lm_head"})


def take_orders(path: Path, records: Records, stored: dict[str, Tensor]) -> dict[str, I32]:
    """Role -> the column of the input that each column reads: int32 [matrices, k]. A down is not
    among them: the rows of gate and up are in its order.

    Takes the tensors that hold orders out of `stored`. Raises ModelError for what is no order, and
    where matrices that need the same one have not.
    """
    found: dict[str, I32] = {}
    names = {record[key] for record in records.values() for key in _keys(record)}
    held = {name: stored.pop(name) for name in sorted(names) if name in stored}
    for role, record in records.items():
        _check_mates(path, role, records)
        if "columns" not in record:
            continue
        order = _order(path, held, record["columns"], (record["count"], record["k"]))
        if not role.endswith("down"):
            _check_order(path, record["columns"], order)
            found[role] = order
    return found


def _keys(record: Mapping[str, Any]) -> list[str]:
    return [key for key in ("columns", "rows") if key in record]


def _check_mates(path: Path, role: str, records: Records) -> None:
    layer, dot, part = role.rpartition(".")
    record, before = records[role], layer + dot
    down: Mapping[str, Any] = {}
    if part in ("gate", "up"):
        down = records.get(f"{before}down", {})
    sound = not _keys(record) or part in _ORDERED
    sound &= record.get("rows") == down.get("columns")
    for mate in MATES.get(part, ()):
        sound &= records.get(before + mate, record).get("columns") == record.get("columns")
    if not sound:
        raise _damaged(path, f"{role} is in another order than what it goes with")


def _order(path: Path, held: dict[str, Tensor], name: str, shape: tuple[int, int]) -> I32:
    tensor = held.get(name)
    if tensor is None:
        raise ModelError(f"{path} lacks {name}", hint="Convert the model again.")
    if tensor.encoding.name != "I32" or tensor.shape != shape:
        raise _damaged(path, f"{name} is {tensor.encoding.name} {list(tensor.shape)}")
    order: I32 = tensor.data.view("<i4").reshape(shape)
    return order


def _check_order(path: Path, name: str, order: I32) -> None:
    seen = np.zeros(order.shape, bool)
    if order.min() >= 0 and order.max() < order.shape[1]:
        np.put_along_axis(seen, order, True, axis=1)
    if not seen.all():
        raise _damaged(path, f"{name} does not name every column once")


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{path}: {why}", hint="Convert the model again.")
