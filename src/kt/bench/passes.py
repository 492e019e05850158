"""Forward passes on an executor, prepared so that running them does nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kt.engine.batch import I32, Batch, Executor

Run = Callable[[], None]


class Passes:
    """Passes over random tokens. Each of `sequences` sequences owns an equal part of the KV pages.
    chunk: tokens of a prefill pass, as the engine cuts prompts."""

    def __init__(self, executor: Executor, chunk: int, sequences: int, seed: int = 3) -> None:
        self._executor = executor
        self._chunk = min(chunk, executor.max_batch_tokens)
        self._each = executor.n_pages // sequences
        self._rng = np.random.default_rng(seed)

    def chunks(self, length: int) -> list[tuple[int, int]]:
        """(first position, tokens) of the passes of a prompt."""
        starts = range(0, length, self._chunk)
        return [(first, min(self._chunk, length - first)) for first in starts]

    def prefill(self, length: int, sequence: int = 0) -> Run:
        """A prompt in as many passes as its chunks; logits of its last token."""
        pages = self._pages([sequence], length)
        batches = [
            self._batch(pages, [first], count, logits=first + count == length)
            for first, count in self.chunks(length)
        ]
        return self._run(batches)

    def decode(self, context: int, sequences: int, count: int) -> Run:
        """`count` passes from position `context` on, each with one token of every sequence."""
        pages = self._pages(list(range(sequences)), context + count)
        batches = [
            self._batch(pages, [context + i] * sequences, 1, logits=True) for i in range(count)
        ]
        return self._run(batches)

    def _run(self, batches: list[Batch]) -> Run:
        forward = self._executor.forward

        def run() -> None:
            for batch in batches:
                forward(batch)

        return run

    def _pages(self, sequences: list[int], positions: int) -> I32:
        """A page table. (A long prompt alone may run on into the pages of the next sequence.)"""
        used = -(-positions // self._executor.page_tokens)
        rows = [np.arange(used, dtype=np.int32) + sequence * self._each for sequence in sequences]
        return np.stack(rows)

    def _batch(self, pages: I32, first: list[int], count: int, *, logits: bool) -> Batch:
        """`count` tokens of each sequence of the page table, `first` their first positions."""
        rows = len(first) * count
        starts = np.arange(0, rows + 1, count, dtype=np.int32)
        return Batch(
            tokens=self._rng.integers(0, self._executor.vocab, rows, dtype=np.int32),
            seq_start=starts,
            first_position=np.array(first, np.int32),
            page_table=pages,
            logit_rows=starts[1:] - 1 if logits else np.empty(0, np.int32),
        )
