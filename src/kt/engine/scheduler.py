"""Decides which tokens of which sequences the next step computes; it never looks at a value."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from kt.engine.pages import PagePool
from kt.engine.prefix_cache import ROOT, PrefixCache
from kt.engine.sequence import Sequence


class Chunk(NamedTuple):
    """The next `tokens` uncomputed positions of a sequence, and then those of guessed tokens.

    scored: how many of the tokens have a successor in the prompt whose log probability is wanted.
    """

    sequence: Sequence
    tokens: int
    draft: tuple[int, ...] = ()
    scored: int = 0

    @property
    def rows(self) -> int:
        return self.tokens + len(self.draft)

    @property
    def draws(self) -> int:
        """Tokens that can be drawn: none before the end of what is known, else one, and one for
        every guess.
        """
        return 1 + len(self.draft) if self.tokens == self.sequence.pending else 0

    @property
    def logits(self) -> int:
        """How many of the rows, the last ones, have their logits read."""
        return self.scored + self.draws


class Scheduler:
    """First come, first served, over at most max_batch running sequences.

    Every step computes one token of each decoding sequence and its guesses, then prompts: up to
    prefill_chunk tokens, up to shared_chunk while answers are running; max_tokens rows and
    max_logits rows with logits in all. When pages run out, the latest to have started gives up its
    pages and is computed again later. A prompt whose start another one is about to compute waits
    for it; else `running` and `waiting` are in order of arrival.
    """

    def __init__(
        self,
        *,
        n_pages: int,
        page_tokens: int,
        max_tokens: int,
        max_logits: int,
        max_batch: int,
        prefill_chunk: int,
        prefix_cache: bool = True,
    ) -> None:
        self.pool = PagePool(n_pages)
        self.cache = PrefixCache(self.pool, page_tokens) if prefix_cache else None
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.max_batch = min(max_batch, max_tokens, max_logits)
        self.shared_chunk = prefill_chunk
        self._page_tokens = page_tokens
        self._max_tokens = max_tokens
        self._max_logits = max_logits
        self._spare_logits = 0  # of a step: beyond one for every sequence that may run
        self._prefill_chunk = prefill_chunk
        self._blocked: tuple[Sequence, int] | None = None

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, *, spoilt: bool = False) -> bool:
        """Takes a sequence out, wherever it is, and frees its pages. False if it is not here.

        spoilt: nobody shall find what is in its pages.
        """
        if sequence in self.running:
            self.running.remove(sequence)
            if spoilt and self.cache is not None:
                self.cache.forget(sequence.pages.view().tolist())
            self._release(sequence)
            return True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return True
        return False

    def schedule(self) -> list[Chunk]:
        """The next step's work, with pages for all of it; empty only if there are no sequences."""
        self._spare_logits = self._max_logits - self.max_batch
        chunks = self._decodes()
        budget = self._max_tokens - sum(chunk.rows for chunk in chunks)
        budget = min(budget, self.shared_chunk if chunks else self._prefill_chunk)
        for sequence in self.running:
            if budget > 0 and sequence.pending > 1:
                budget -= self._prefill(sequence, budget, chunks)
        for sequence in tuple(self.waiting):
            if budget <= 0 or len(self.running) >= self.max_batch:
                break
            if self._awaits_prefix(sequence):
                continue
            if not self._admit(sequence):
                break
            budget -= self._prefill(sequence, budget, chunks)
        return chunks

    def advance(self, sequence: Sequence, tokens: int) -> None:
        """Notes that `tokens` more were computed; full pages can be found from now on."""
        sequence.computed += tokens
        if self.cache is not None:
            self._store(sequence, self.cache)

    def _decodes(self) -> list[Chunk]:
        chunks = []
        spare_rows = self._max_tokens - self.max_batch
        index = 0
        # Preemption shortens the list from its end while this walks it.
        while index < len(self.running):
            sequence = self.running[index]
            if sequence.pending == 1 and self._make_room(sequence):
                draft = self._room_for_draft(sequence, min(self._spare_logits, spare_rows))
                spare_rows -= len(draft)
                self._spare_logits -= len(draft)
                chunks.append(Chunk(sequence, 1, draft))
            index += 1
        return chunks

    def _room_for_draft(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """The start of the sequence's guesses that has room, without taking any from others."""
        draft = sequence.draft[:most]
        free = len(sequence.pages) * self._page_tokens - len(sequence.history)
        if len(draft) > free and self.pool.free > len(self.running):
            sequence.pages.extend(self.pool.take(1))
            free += self._page_tokens
        return draft[:free]

    def _prefill(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        tokens = min(budget, sequence.pending)
        if sequence.unscored:  # every row's logits are read
            tokens = min(tokens, self._spare_logits + 1)
            self._spare_logits -= tokens - 1
        scored = min(tokens, sequence.unscored)
        chunks.append(Chunk(sequence, tokens, scored=scored))
        return tokens

    def _make_room(self, sequence: Sequence) -> bool:
        """A page for the sequence's next position; False if it was itself preempted."""
        if len(sequence.pages) * self._page_tokens >= len(sequence.history):
            return True
        while self.pool.free == 0:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages.extend(self.pool.take(1))
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(victim)
        self._release(victim)
        self.waiting.appendleft(victim)

    def _admit(self, sequence: Sequence) -> bool:
        """Gives a waiting sequence pages for its whole history, if enough stay for the others."""
        if self._still_blocked(sequence):
            return False
        found, key = self._find(sequence)
        needed = -(-len(sequence.history) // self._page_tokens) - len(found)
        if needed + len(self.running) > self.pool.free:
            self._drop(found)
            self._blocked = (sequence, self.pool.free)
            return False
        self._blocked = None
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.pages.extend(found + self.pool.take(needed))
        sequence.stored, sequence.key = len(found), key
        sequence.start(len(found) * self._page_tokens)
        return True

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to compute pages that this one could then find."""
        if self.cache is None or sequence.unscored:
            return False
        return any(
            other.pending > 1
            and not other.unscored
            and self._common_pages(other, sequence) > other.stored
            for other in self.running
        )

    def _common_pages(self, one: Sequence, other: Sequence) -> int:
        """Full pages at the start of both, as far as `other` could use them."""
        size = self._page_tokens
        length = min(len(one.history), len(other.history) - 1)
        a, b = one.history.view()[:length], other.history.view()[:length]
        if length < size or not np.array_equal(a[:size], b[:size]):
            return 0
        different = np.flatnonzero(a != b)
        return int(different[0] if len(different) else length) // size

    def _still_blocked(self, sequence: Sequence) -> bool:
        """Whether nothing was freed since the last try, which then is not repeated."""
        return (
            self._blocked is not None
            and self._blocked[0] is sequence
            and self.pool.free <= self._blocked[1]
        )

    def _find(self, sequence: Sequence) -> tuple[list[int], bytes]:
        if self.cache is None or sequence.unscored:
            return [], ROOT
        return self.cache.match(sequence.history.view())

    def _release(self, sequence: Sequence) -> None:
        self._drop(sequence.pages.view().tolist())
        sequence.pages.truncate()

    def _drop(self, pages: list[int]) -> None:
        if self.cache is None:
            self.pool.release(pages)
        else:
            self.pool.release(pages, self.cache.holds)

    def _store(self, sequence: Sequence, cache: PrefixCache) -> None:
        size = self._page_tokens
        while (sequence.stored + 1) * size <= sequence.computed:
            first = sequence.stored * size
            tokens = sequence.history.view()[first : first + size]
            page = int(sequence.pages.view()[sequence.stored])
            sequence.key = cache.store(sequence.key, tokens, page)
            sequence.stored += 1
