"""Finds KV pages that already hold the start of a prompt."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from kt.engine.batch import I32
from kt.engine.pages import PagePool

ROOT = b""


class _Entry(NamedTuple):
    page: int
    parent: bytes
    tokens: bytes


class PrefixCache:
    """Full pages by chained hash: a page's key hashes its tokens and the key of the page before it.

    Tokens and predecessor are compared on a hit, so a collision is a miss. Entries do not hold a
    reference: a page in use stays findable, a free one until the pool reuses it.
    """

    def __init__(self, pool: PagePool, page_tokens: int) -> None:
        self._pool = pool
        self._page_tokens = page_tokens
        self._entries: dict[bytes, _Entry] = {}
        self._keys: dict[int, bytes] = {}
        pool.on_reuse = self._forget

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, page: int) -> bool:
        """Whether the page can be found."""
        return page in self._keys

    def match(self, history: I32) -> tuple[list[int], bytes]:
        """Pages that hold the start of `history`, and the key of the last (ROOT if none).

        Each page gains a reference. The last token is never covered: its logits are still needed.
        """
        pages: list[int] = []
        key = ROOT
        for first in range(0, len(history) - self._page_tokens, self._page_tokens):
            tokens = history[first : first + self._page_tokens].tobytes()
            next_key = _chain(key, tokens)
            entry = self._entries.get(next_key)
            if entry is None or entry.tokens != tokens or entry.parent != key:
                break
            self._pool.share(entry.page)
            pages.append(entry.page)
            key = next_key
        return pages, key

    def store(self, parent: bytes, tokens: I32, page: int) -> bytes:
        """Makes a full page findable behind `parent`; returns its key, which the first keeps."""
        contents = tokens.tobytes()
        key = _chain(parent, contents)
        if key not in self._entries:
            self._entries[key] = _Entry(page, parent, contents)
            self._keys[page] = key
        return key

    def forget(self, pages: list[int]) -> None:
        """Makes pages unfindable."""
        for page in pages:
            self._forget(page)

    def clear(self) -> None:
        """Makes all pages unfindable."""
        self.forget(list(self._keys))

    def _forget(self, page: int) -> None:
        key = self._keys.pop(page, None)
        if key is not None:
            del self._entries[key]


def _chain(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(tokens, key=parent, digest_size=16).digest()
