"""Long texts tokenised in pieces, so that time, memory and what others wait for stay bounded.

A text may be cut where the ids of what lies around the cut are those of its two sides. Such a place
is looked for between a word and what follows it; a text that has none within half a piece, such as
one endless word, is cut anywhere, and its ids there may differ from those of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kt.errors import KtError

Encode = Callable[[str], list[int]]

PIECE: Final = 1 << 16
"""Characters."""
_AROUND: Final = 192  # characters on each side of a cut that are tried
_TRIES: Final = 4
# The most likely places first; a match ends at the cut.
_PLACES: Final = tuple(
    re.compile(place)
    for place in (r"\w(?= \w)", r"\w(?=\s)", r"\w(?=[^\w\s])", r"\n(?=\S)", r"\d(?=\d)")
)
_NEVER_INSIDE: Final = re.compile("\ufdef[0-9a-f]{16}")  # the beginning of a sealed special token


class TextTooLong(KtError):
    """The text has more tokens than are allowed. tokens: how many were counted; limit: allowed."""

    exit_code = 2

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens or more, but the context holds {limit}",
            hint="shorten the prompt; a larger --context helps where the model has more positions",
        )
        self.tokens = tokens
        self.limit = limit


class _Cut(NamedTuple):
    """at: where a piece ends; resume: where the next one begins."""

    at: int
    resume: int


def encode_long(encode: Encode, text: str, limit: int | None = None) -> list[int]:
    """The ids of `text`. Raises TextTooLong as soon as there are more than `limit`."""
    ids: list[int] = []
    start = 0
    while start < len(text):
        cut = _cut(encode, text, start)
        ids += encode(text[start : cut.at])
        start = cut.resume
        if limit is not None and len(ids) > limit:
            raise TextTooLong(len(ids), limit)
    return ids


def _cut(encode: Encode, text: str, start: int) -> _Cut:
    if len(text) - start <= PIECE:
        return _Cut(len(text), len(text))
    low, high = start + PIECE // 2, start + PIECE
    for at in _places(text, low, high):
        left, right = text[at - _AROUND : at], text[at : at + _AROUND]
        whole, before = encode(left + right), encode(left)
        if before + encode(right) == whole:
            return _Cut(at, at)
        # Some tokenizers put a space before every text.
        if right.startswith(" ") and before + encode(right[1:]) == whole:
            return _Cut(at, at + 1)
    sealed = _NEVER_INSIDE.search(text, high - _AROUND, high)
    at = sealed.start() if sealed else high
    return _Cut(at, at)


def _places(text: str, low: int, high: int) -> Iterator[int]:
    for place in _PLACES:
        found = [match.end() for match in place.finditer(text, high - PIECE // 16, high)]
        if not found:
            found = [match.end() for match in place.finditer(text, low, high)]
        yield from reversed(found[-_TRIES:])
