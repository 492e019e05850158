"""Batches of whole documents as one flat run of tokens; a batch depends on its number alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.tiny.text.corpus import documents
from tools.tiny.text.document import Document

LONGEST: Final = 512
"""Tokens; a longer document is cut."""
QUESTION_WEIGHT: Final = 0.1
"""What the user says is learned too, but counts less."""
_SPREAD: Final = 1.25
"""Documents are padded together where the longest is at most this much longer than the shortest."""


@dataclass(frozen=True)
class Batch:
    """Documents behind each other, the shortest first, no padding.

    ids int64 [tokens]; weights float32 [tokens]: how much predicting this token counts, 0 for the
    first of a document. groups: (documents, tokens of the longest) of documents that attention
    pads together. padded int64: the token at each place of the padded groups, one group after the
    other; places int64 [tokens]: the place of each token there.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    positions: NDArray[np.int64]
    groups: list[tuple[int, int]]
    padded: NDArray[np.int64]
    places: NDArray[np.int64]


def encode(tokenizer: Tokenizer, document: Document) -> tuple[list[int], list[float]]:
    """Token ids, and what each counts in the loss."""
    ids: list[int] = []
    weights: list[float] = []
    for text, own in document.parts():
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        weights += [1.0 if own else QUESTION_WEIGHT] * len(piece)
    weights[0] = 0.0
    return ids[:LONGEST], weights[:LONGEST]


def batch(encoded: Iterable[tuple[list[int], list[float]]]) -> Batch:
    """A batch of these documents."""
    rows = sorted(encoded, key=lambda row: len(row[0]))
    lengths = [len(ids) for ids, _ in rows]
    groups, padded, places = _layout(lengths)
    return Batch(
        ids=np.array([token for ids, _ in rows for token in ids], np.int64),
        weights=np.array([count for _, weights in rows for count in weights], np.float32),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        groups=groups,
        padded=padded,
        places=places,
    )


def _layout(
    lengths: list[int],
) -> tuple[list[tuple[int, int]], NDArray[np.int64], NDArray[np.int64]]:
    """groups, padded and places of documents of these lengths, which rise."""
    bounds = [0]
    for index, length in enumerate(lengths):
        if length > lengths[bounds[-1]] * _SPREAD:
            bounds.append(index)
    starts = [0, *accumulate(lengths)]
    groups, padded, places, at = [], [], [], 0
    for first, end in zip(bounds, [*bounds[1:], len(lengths)], strict=True):
        longest = lengths[end - 1]
        groups.append((end - first, longest))
        for index in range(first, end):
            # Padding repeats the last token; causal attention never looks at it.
            row = np.minimum(np.arange(longest), lengths[index] - 1)
            padded.append(starts[index] + row)
            places.append(at + np.arange(lengths[index]))
            at += longest
    return groups, np.concatenate(padded), np.concatenate(places)


def batches(tokenizer: Tokenizer, source: Iterable[Document], tokens: int) -> Iterator[Batch]:
    """Batches of at most `tokens` tokens."""
    waiting: list[tuple[list[int], list[float]]] = []
    size = 0
    for document in source:
        row = encode(tokenizer, document)
        if size + len(row[0]) > tokens:
            yield batch(waiting)
            waiting, size = [], 0
        waiting.append(row)
        size += len(row[0])


def training_batch(tokenizer: Tokenizer, seed: int, number: int, tokens: int) -> Batch:
    """Training batch `number`: the first `tokens` tokens of a stream of its own."""
    return next(batches(tokenizer, documents(f"{seed} train {number}"), tokens))
