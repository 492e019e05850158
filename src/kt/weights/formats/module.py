"""One quantised matrix (or stack of them) on its way from several tensors of a file to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.weights.encodings import Encoding
from kt.weights.quant import SCALE_DTYPES, Bytes, Quant
from kt.weights.tensor import Tensor

_DTYPES = {"I32": "<i4", "I64": "<i8", "I8": "i1", "U8": "u1", "F32": "<f4"}


@dataclass(frozen=True)
class Scheme:
    """endings: ending of a tensor's name -> which part of a module it is; the first that fits
    counts. build: puts a module together, or raises ModelError.
    """

    endings: Mapping[str, str]
    build: Callable[[Module], Tensor]

    def split(self, name: str) -> tuple[str, str]:
        """(name of the matrix, part)."""
        for ending, part in self.endings.items():
            if name.endswith(ending):
                base = name.removesuffix(ending)
                return (base + ".weight" if ending.startswith(".") else base), part
        return name, "data"


@dataclass(frozen=True)
class Module:
    """name: of the matrix. parts: the tensors it consists of; "data" holds the codes."""

    name: str
    parts: dict[str, Tensor]

    def part(self, part: str, meaning: str) -> Tensor:
        """A tensor that must be there. Raises ModelError."""
        if part not in self.parts:
            raise ModelError(f"{self.name} ({self.parts['data'].encoding.name}) has no {meaning}")
        return self.parts[part]

    def codes(self, *dtypes: str) -> Tensor:
        """The codes, a matrix or stack of one of `dtypes`. Raises ModelError."""
        data = self.parts["data"]
        if data.encoding.name not in dtypes:
            raise ModelError(f"{data.name} is {data.encoding.name}, not {' or '.join(dtypes)}")
        if len(data.shape) < 2 or 0 in data.shape:
            raise ModelError(f"{data.name} {list(data.shape)} is no matrix")
        return data

    def scales(self, tensor: Tensor, shape: tuple[int, ...], kind: str = "") -> npt.NDArray[Any]:
        """The scales of `tensor` as an array of `shape`, as `kind` (a key of SCALE_DTYPES) or as
        their dtype says. Raises ModelError where sizes differ.
        """
        kind = kind or scale_type(tensor)
        values = tensor.data.view(SCALE_DTYPES[kind])
        if values.size != prod(shape):
            raise ModelError(
                f"{tensor.name} has shape {list(tensor.shape)}, {self.name} needs {list(shape)}"
            )
        shaped: npt.NDArray[Any] = values.reshape(shape)
        return shaped

    def tensor(
        self, encoding: Encoding, shape: tuple[int, ...], quant: Quant, data: Bytes | None = None
    ) -> Tensor:
        """The matrix put together."""
        codes = self.parts["data"].data if data is None else data
        return Tensor(self.name, shape, encoding, codes, quant)


def scale_type(tensor: Tensor) -> str:
    """The key of SCALE_DTYPES that a tensor's dtype is. Raises ModelError."""
    kind = tensor.encoding.name.removeprefix("F8_")
    if kind not in SCALE_DTYPES:
        raise ModelError(f"{tensor.name} is {tensor.encoding.name}, which no scales are")
    return kind


def array(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of an integer or float32 tensor, without copying. Raises ModelError."""
    dtype = _DTYPES.get(tensor.encoding.name)
    if dtype is None:
        raise ModelError(f"{tensor.name} is {tensor.encoding.name}, not a number that kt expects")
    return tensor.data.view(np.dtype(dtype)).reshape(tensor.shape)


def groups(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """The shape of the scales of a matrix or stack [..., n, k] with one scale per block."""
    *lead, n, k = shape
    return (*lead, -(-n // block[0]), -(-k // block[1]))


def whole_rows(scale: Tensor, shape: tuple[int, ...]) -> tuple[int, int]:
    """The block of scales that are one per matrix or one per row. Raises ModelError."""
    n, k = shape[-2:]
    for block in ((n, k), (1, k)):
        if prod(scale.shape) == prod(groups(shape, block)):
            return block
    raise ModelError(
        f"{scale.name} has shape {list(scale.shape)}: neither one scale nor one per row of {n}"
    )


def four_bit_format(group: int, k: int, kind: str, *, zeros: bool) -> str:
    """The smallest packed format that holds 4-bit codes with a scale of `kind` (and a zero point)
    per `group` columns exactly; "" if there is none.
    """
    step = next((step for step in (128, 64, 32) if group % step == 0 or group >= k), 0)
    if not step:
        return ""
    if kind == "F16" and not zeros:
        return f"I4_G{step}"
    if kind == "BF16" and not zeros:
        return "I4_B128" if step == 128 else "I4_B32"
    return "I4_Z128H" if kind == "F16" and step == 128 else f"I4_Z{step}"
