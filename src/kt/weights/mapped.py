"""Giving back the memory of files that are mapped and were read."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from kt.weights.tensor import Tensor


def forget(tensors: Iterable[Tensor]) -> None:
    """Gives the mapped pages of `tensors` back: nothing reads them again soon."""
    for tensor in tensors:
        _forget(tensor.data)
        if tensor.quant is not None:
            _forget(tensor.quant.scales)


def _forget(data: npt.NDArray[Any]) -> None:
    root: Any = data
    while isinstance(root.base, np.ndarray):
        root = root.base
    owner = root.base.obj if isinstance(root.base, memoryview) else root.base
    if not isinstance(owner, mmap.mmap) or not data.size:
        return
    start = data.ctypes.data - root.ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # only advice
        owner.madvise(mmap.MADV_DONTNEED, first, start + data.nbytes - first)
