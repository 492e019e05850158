"""Batches of whole documents as one flat run of tokens; a batch depends on its number alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.tiny.text.corpus import LAST_SHARES, SHARES, documents
from tools.tiny.text.document import Document

LONGEST: Final = 512
"""Tokens; a longer document is cut."""
QUESTION_WEIGHT: Final = 0.1
"""What the user says is learned too, but counts less."""
_LENGTHS: Final = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, LONGEST)
"""What documents are padded to for attention. Few shapes, because torch's matrix products on a CPU
compile code for each new one, which takes longer than the product.
"""
_COUNTS: Final = 2
"""Documents of a length are padded to a multiple of this, for the same reason."""


@dataclass(frozen=True)
class Batch:
    """Documents behind each other, the shortest first.

    ids int64 [tokens]; weights float32 [tokens]: how much predicting this token counts, 0 for the
    first of a document and for padding at the end of a batch. groups: (documents, tokens of each)
    that attention computes together, padded; places int64 [tokens]: where each token is in these
    groups, which lie behind each other.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    positions: NDArray[np.int64]
    groups: list[tuple[int, int]]
    places: NDArray[np.int64]


Row = tuple[list[int], list[float]]
"""The tokens of a document, and what predicting each of them counts."""


def encode(tokenizer: Tokenizer, document: Document) -> Row:
    """Token ids, and what each counts in the loss."""
    ids: list[int] = []
    weights: list[float] = []
    for text, own in document.parts():
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        weights += [1.0 if own else QUESTION_WEIGHT] * len(piece)
    weights[0] = 0.0
    return ids[:LONGEST], weights[:LONGEST]


def batch(encoded: Iterable[Row], tokens: int) -> Batch:
    """A batch of these documents, filled up to `tokens`."""
    rows = list(encoded)
    missing = tokens - sum(len(ids) for ids, _ in rows)
    if missing:
        rows.append(([0] * missing, [0.0] * missing))
    rows.sort(key=lambda row: len(row[0]))
    lengths = [len(ids) for ids, _ in rows]
    groups, places = _layout(lengths)
    return Batch(
        ids=np.array([token for ids, _ in rows for token in ids], np.int64),
        weights=np.array([count for _, weights in rows for count in weights], np.float32),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        groups=groups,
        places=places,
    )


def _layout(lengths: list[int]) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """groups and places of documents of these lengths, which rise."""
    padded = [next(room for room in _LENGTHS if length <= room) for length in lengths]
    groups: list[tuple[int, int]] = []
    places, begin = [], 0
    for room in sorted(set(padded)):
        inside = [length for length, wanted in zip(lengths, padded, strict=True) if wanted == room]
        places += [begin + i * room + np.arange(length) for i, length in enumerate(inside)]
        count = -(-len(inside) // _COUNTS) * _COUNTS
        groups.append((count, room))
        begin += count * room
    return groups, np.concatenate(places)


def batches(tokenizer: Tokenizer, source: Iterable[Document], tokens: int) -> Iterator[Batch]:
    """Batches of `tokens` tokens."""
    waiting: list[Row] = []
    size = 0
    for document in source:
        row = encode(tokenizer, document)
        if size + len(row[0]) > tokens:
            yield batch(waiting, tokens)
            waiting, size = [], 0
        waiting.append(row)
        size += len(row[0])


def training_batch(tokenizer: Tokenizer, seed: int, number: int, tokens: int, last: bool) -> Batch:
    """Training batch `number`: the first `tokens` tokens of a stream of its own. last: with the
    shares of the end of the training.
    """
    source = documents(f"{seed} train {number}", LAST_SHARES if last else SHARES)
    return next(batches(tokenizer, source, tokens))
