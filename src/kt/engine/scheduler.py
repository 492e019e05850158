"""Decides which tokens of which sequences the next step computes; it never looks at a value."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from kt.engine.pages import PagePool
from kt.engine.prefix_cache import ROOT, PrefixCache
from kt.engine.sequence import Sequence


class Chunk(NamedTuple):
    """The next `tokens` uncomputed positions of a sequence."""

    sequence: Sequence
    tokens: int

    @property
    def wants_logits(self) -> bool:
        """Whether the chunk reaches the end of what is known: the next token can be drawn."""
        return self.tokens == self.sequence.pending


class Scheduler:
    """First come, first served, over at most max_batch running sequences.

    Every step computes one token of each decoding sequence, then up to prefill_chunk tokens of
    prompts, max_tokens in all. When pages run out, the latest arrival gives up its pages and is
    computed again later. `running` and `waiting` are both in order of arrival, all of `running`
    before all of `waiting`.
    """

    def __init__(
        self,
        *,
        n_pages: int,
        page_tokens: int,
        max_tokens: int,
        max_batch: int,
        prefill_chunk: int,
        prefix_cache: bool = True,
    ) -> None:
        self.pool = PagePool(n_pages)
        self.cache = PrefixCache(self.pool, page_tokens) if prefix_cache else None
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.max_batch = min(max_batch, max_tokens)
        self._page_tokens = page_tokens
        self._max_tokens = max_tokens
        self._prefill_chunk = prefill_chunk
        self._blocked: tuple[Sequence, int] | None = None

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Takes a sequence out, wherever it is, and frees its pages. False if it is not here."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
            return True
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return True
        return False

    def schedule(self) -> list[Chunk]:
        """The next step's work, with pages for all of it; empty only if there are no sequences."""
        chunks = self._decodes()
        budget = min(self._prefill_chunk, self._max_tokens - len(chunks))
        for sequence in self.running:
            if budget > 0 and sequence.pending > 1:
                budget -= self._prefill(sequence, budget, chunks)
        while budget > 0 and self.waiting and len(self.running) < self.max_batch:
            if not self._admit(self.waiting[0]):
                break
            budget -= self._prefill(self.running[-1], budget, chunks)
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """Notes that the chunks were computed; full pages can be found from now on."""
        for sequence, tokens in chunks:
            sequence.computed += tokens
            if self.cache is not None:
                self._store(sequence, self.cache)

    def _decodes(self) -> list[Chunk]:
        chunks = []
        index = 0
        # Preemption shortens the list from its end while this walks it.
        while index < len(self.running):
            sequence = self.running[index]
            if sequence.pending == 1 and self._make_room(sequence):
                chunks.append(Chunk(sequence, 1))
            index += 1
        return chunks

    def _prefill(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        tokens = min(budget, sequence.pending)
        chunks.append(Chunk(sequence, tokens))
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
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.pages.extend(found + self.pool.take(needed))
        sequence.stored, sequence.key = len(found), key
        sequence.computed = len(found) * self._page_tokens
        sequence.start(sequence.computed)
        return True

    def _still_blocked(self, sequence: Sequence) -> bool:
        """Whether nothing was freed since the last try, which then is not repeated."""
        return (
            self._blocked is not None
            and self._blocked[0] is sequence
            and self.pool.free <= self._blocked[1]
        )

    def _find(self, sequence: Sequence) -> tuple[list[int], bytes]:
        if self.cache is None:
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
