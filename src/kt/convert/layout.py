"""Which tensor goes into which file, how large everything gets, and the files' headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any, Final

from kt.convert.orders import Order, Orders, orders_of
from kt.convert.targets import packed_format
from kt.errors import ModelError
from kt.models.tensors import PARTS
from kt.placement.budget import packed_bytes
from kt.weights.checkpoint import Checkpoint
from kt.weights.packed_folder import ALIGNMENT
from kt.weights.tensor import Tensor

REST: Final = "rest.safetensors"

Choose = Callable[[str, Tensor], str]
"""(role, tensor) -> packed format."""


@dataclass(frozen=True)
class Matrix:
    """A matrix [n, k] of role `name`, or one per expert. format: of the packed bytes. columns,
    rows: their order there, if it is another than in the source.
    """

    name: str
    tensors: Sequence[Tensor]
    format: str
    columns: Order | None = None
    rows: Order | None = None

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.tensors[0].shape
        return n, k

    @cached_property
    def stride(self) -> int:
        """Bytes of one packed matrix."""
        return packed_bytes(self.format, *self.shape)

    @property
    def nbytes(self) -> int:
        return self.stride * len(self.tensors)


@dataclass(frozen=True)
class FileLayout:
    """One file: matrices first, each at a multiple of 64 bytes, then vectors as float32, then
    orders of columns as int32.
    """

    name: str
    matrices: list[Matrix]
    vectors: list[Tensor]
    vector_names: list[str]
    orders: Sequence[Order] = ()

    @cached_property
    def header(self) -> bytes:
        """The safetensors header, its length in front and padded to whole lines of 64 bytes."""
        at, table = 0, dict[str, Any]()
        entries: list[tuple[str, str, tuple[int, ...], int]] = []
        entries += [(m.name, "U8", (m.nbytes,), m.nbytes) for m in self.matrices]
        for name, tensor in zip(self.vector_names, self.vectors, strict=True):
            entries.append((name, "F32", tensor.shape, 4 * prod(tensor.shape)))
        entries += [(order.name, "I32", order.shape, order.nbytes) for order in self.orders]
        for name, dtype, shape, nbytes in entries:
            table[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, at + nbytes)}
            at += nbytes
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        data = sum(m.nbytes for m in self.matrices) + sum(4 * prod(v.shape) for v in self.vectors)
        return len(self.header) + data + sum(order.nbytes for order in self.orders)


def layout(
    checkpoint: Checkpoint, target: str, group: int | None, *, experts_only: bool
) -> list[FileLayout]:
    """All files of a conversion, in the order in which they are written. Raises ModelError."""
    choose = partial(packed_format, target=target, group=group, experts_only=experts_only)
    roles: dict[int, list[str]] = {index: [] for index in sorted(checkpoint.expert_layers)}
    for role in sorted(checkpoint.roles):
        roles.setdefault(_layer(role), []).append(role)
    return [_file(checkpoint, index, names, choose) for index, names in sorted(roles.items())]


def _layer(role: str) -> int:
    return int(role.split(".")[1]) if role.startswith("layers.") else -1


def _file(checkpoint: Checkpoint, index: int, roles: list[str], choose: Choose) -> FileLayout:
    name = REST if index < 0 else f"layer-{index:05d}.safetensors"
    matrices: dict[str, Sequence[Tensor]] = {}
    vectors: dict[str, Tensor] = {}
    for role in roles:
        tensor = checkpoint.tensor(role)
        if len(tensor.shape) == 2 and not role.endswith(".bias"):
            matrices[role] = [tensor]
        elif len(tensor.shape) > 2:
            raise ModelError(f"{tensor.name} {list(tensor.shape)} cannot be converted")
        else:
            vectors[role] = tensor
    if index in checkpoint.expert_layers:
        for part in PARTS:
            matrices[f"layers.{index}.experts.{part}"] = checkpoint.experts(index, part)
    formats = {role: choose(role, tensors[0]) for role, tensors in matrices.items()}
    orders = _orders(matrices, formats)
    made = [
        Matrix(role, tensors, formats[role], orders.columns.get(role), orders.rows.get(role))
        for role, tensors in matrices.items()
    ]
    return FileLayout(name, made, list(vectors.values()), list(vectors), orders.stored)


def _orders(matrices: dict[str, Sequence[Tensor]], formats: dict[str, str]) -> Orders:
    kept = {
        role: tensors
        for role, tensors in matrices.items()
        if formats[role] == tensors[0].packed_format
    }
    return orders_of(kept, list(matrices))
