"""What one engine step asks of an executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Batch:
    """A ragged batch of S sequences and N tokens in all (prefill chunks and decodes mixed).

    tokens [N]; seq_start [S + 1]: sequence s owns rows seq_start[s]:seq_start[s + 1];
    first_position [S]: position of its first row; earlier ones are already in the KV pages;
    page_table [S, P]: page ids, entry j holds positions j * page_tokens ...; covers the new rows;
    logit_rows [L]: ascending rows whose logits are wanted.
    """

    tokens: I32
    seq_start: I32
    first_position: I32
    page_table: I32
    logit_rows: I32


class Executor(Protocol):
    """Runs forward passes. Pages 0 .. n_pages - 1 belong to the caller, who says whose they are."""

    vocab: int
    context: int
    max_batch_tokens: int
    max_logits: int  # rows of a batch that may want logits
    page_tokens: int
    n_pages: int

    def forward(self, batch: Batch) -> F32:
        """Logits [L, vocab] float32; the array is reused by the next call.

        Raises KtError; NotFinite for a logit that is no number: a part of the batch may still run.
        """

    def sample(self, logits: F32, params: list[SampleParams]) -> list[Sampled]:
        """One draw per row; `logits` may be changed."""

    def close(self) -> None:
        """Frees memory and threads."""


@dataclass(frozen=True)
class SampleParams:
    """One row's sampling: the fields of kt_sampling in native/include/kt.h.

    history [n]: prompt, then output ids. mask [(vocab + 31) // 32]: bit i % 32 of word i // 32
    allows id i; None allows all. given: this id instead of a draw, for its logprob; -1: draw.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    n_logprobs: int
    seed: int
    position: int
    n_prompt: int
    history: I32
    bias: tuple[tuple[int, float], ...] = ()
    mask: U32 | None = None
    given: int = -1


@dataclass(frozen=True)
class Sampled:
    """A chosen id; logprob and best are of the raw distribution, None unless asked for."""

    token: int
    logprob: float | None = None
    best: tuple[tuple[int, float], ...] = ()
