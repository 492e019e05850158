"""Lays chunks out as the flat arrays of a batch, in memory that is reused from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kt.engine.batch import I32, Batch
from kt.engine.scheduler import Chunk


class BatchLayout:
    """Arrays for max_seqs sequences, max_tokens rows, max_logits of them with logits, and max_pages
    pages a sequence.
    """

    def __init__(self, max_seqs: int, max_tokens: int, max_logits: int, max_pages: int) -> None:
        self._tokens: I32 = np.zeros(max_tokens, np.int32)
        self._seq_start: I32 = np.zeros(max_seqs + 1, np.int32)
        self._first_position: I32 = np.zeros(max_seqs, np.int32)
        self._page_table: I32 = np.zeros(max_seqs * max_pages, np.int32)
        self._logit_rows: I32 = np.zeros(max_logits, np.int32)

    def build(self, chunks: Sequence[Chunk]) -> Batch:
        """The batch of these chunks, in their order; valid until the next call."""
        width = max(len(chunk.sequence.pages) for chunk in chunks)
        table = self._page_table[: len(chunks) * width].reshape(len(chunks), width)
        row = n_logits = 0
        for i, chunk in enumerate(chunks):
            sequence, tokens = chunk.sequence, chunk.tokens
            first = sequence.computed
            self._tokens[row : row + tokens] = sequence.history.view()[first : first + tokens]
            self._tokens[row + tokens : row + chunk.rows] = chunk.draft
            self._first_position[i] = first
            # What lies behind a shorter sequence's pages is stale and never read.
            table[i, : len(sequence.pages)] = sequence.pages.view()
            row += chunk.rows
            self._seq_start[i + 1] = row
            wanted = chunk.logits
            self._logit_rows[n_logits : n_logits + wanted] = np.arange(row - wanted, row)
            n_logits += wanted
        return Batch(
            tokens=self._tokens[:row],
            seq_start=self._seq_start[: len(chunks) + 1],
            first_position=self._first_position[: len(chunks)],
            page_table=table,
            logit_rows=self._logit_rows[:n_logits],
        )
