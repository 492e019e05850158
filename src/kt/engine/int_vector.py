"""A growing int32 array whose contents can be lent out without copying."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kt.engine.batch import I32


class IntVector:
    """Appends in amortised constant time.

    `view()` is a window on the storage, valid for what it covers until `truncate`; growing replaces
    the storage and leaves older views as they were.
    """

    def __init__(self, values: Sequence[int] | I32 = (), *, spare: int = 32) -> None:
        self._storage: I32 = np.empty(len(values) + spare, np.int32)
        self._storage[: len(values)] = values
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    def append(self, value: int) -> None:
        self._reserve(self._length + 1)
        self._storage[self._length] = value
        self._length += 1

    def extend(self, values: Sequence[int]) -> None:
        end = self._length + len(values)
        self._reserve(end)
        self._storage[self._length : end] = values
        self._length = end

    def truncate(self, length: int = 0) -> None:
        self._length = min(self._length, length)

    def view(self) -> I32:
        return self._storage[: self._length]

    def _reserve(self, capacity: int) -> None:
        if capacity > len(self._storage):
            grown = np.empty(max(capacity, 2 * len(self._storage)), np.int32)
            grown[: self._length] = self._storage[: self._length]
            self._storage = grown
