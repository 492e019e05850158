"""The masks of a step's constrained answers, computed while its forward pass runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from kt.engine.batch import U32
from kt.engine.grammar import Constraint

ALL = np.uint32(0xFFFFFFFF)


class Masks:
    """Rows for up to `most` answers of `vocab` ids. For the engine's thread.

    What may come next in an answer depends on its text so far and not on the logits, so it need not
    take time of its own between two passes.
    """

    def __init__(self, most: int, vocab: int) -> None:
        self._rows: U32 = np.empty((most, -(-vocab // 32)), np.uint32)
        self._thread = ThreadPoolExecutor(1, "kt-masks")  # starts it when there is something to do
        self._filler: Any = None

    @contextmanager
    def of(self, constraints: Sequence[Constraint]) -> Iterator[None]:
        """Gives each its mask; they are complete when the context ends."""
        if not constraints:
            yield
            return
        for constraint, row in zip(constraints, self._rows, strict=False):
            constraint.mask = row
        filled = self._thread.submit(self._fill, [c.matcher for c in constraints])
        try:
            yield
        finally:
            filled.result()
            self._excuse(constraints)

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown()

    def _fill(self, matchers: list[Any]) -> None:
        """One call into llguidance, which releases the interpreter's lock until all are filled."""
        if self._filler is None:
            from llguidance import LLExecutor

            self._filler = LLExecutor(1)
        rows = self._rows
        jobs = [(matcher, index) for index, matcher in enumerate(matchers)]
        self._filler.unsafe_compute_mask_ptr(jobs, rows.ctypes.data, rows.strides[0], len(rows))

    def _excuse(self, constraints: Sequence[Constraint]) -> None:
        """An answer whose grammar has become too complex ends before it takes its next token, but
        that is drawn like the others.
        """
        for constraint, row in zip(constraints, self._rows, strict=False):
            if constraint.matcher.is_error():
                row[:] = ALL
