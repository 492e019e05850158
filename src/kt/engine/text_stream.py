"""Token ids to text, with stop texts held back until it is certain that they are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kt.engine.batch import Sampled
from kt.engine.request import Delta, TokenInfo


class Detokenizer(Protocol):
    """Ids in, whole characters out."""

    def push(self, token_id: int, /) -> str: ...
    def flush(self) -> str: ...


class TextStream:
    """Releases tokens whole, once no stop text can begin in them.

    stops: texts that end the stream; `stopped` is the one that did. They are looked for in what
    comes after the first min_tokens tokens.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self.stopped: str | None = None
        self._detokenizer = detokenizer
        self._stops = stops
        self._unchecked = min_tokens
        self._held: list[TokenInfo] = []
        self._text = ""  # of the held tokens

    def push(self, sampled: Sampled) -> Delta | None:
        """What can be shown now, None if nothing."""
        text = self._detokenizer.push(sampled.token)
        self._held.append(TokenInfo(sampled.token, text, sampled.logprob, sampled.best))
        self._text += text
        if self._unchecked > 0:
            self._unchecked -= 1
        elif self._stops:
            return self._check()
        return self._release(len(self._text))

    def finish(self) -> Delta | None:
        """The rest, when the stream ends for another reason than a stop text."""
        rest = self._detokenizer.flush()
        if not self._held and not rest:
            return None
        return Delta(self._text + rest, self._held)

    def _check(self) -> Delta | None:
        found = [(at, stop) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            cut, self.stopped = min(found)
            return self._cut(cut)
        return self._release(len(self._text) - self._possible_start())

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that a stop text starts with."""
        longest = min(len(self._text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stops):
                return length
        return 0

    def _release(self, safe: int) -> Delta | None:
        """The held tokens that end within the first `safe` characters, if they have any text."""
        count = end = 0
        for token in self._held:
            if end + len(token.text) > safe:
                break
            end += len(token.text)
            count += 1
        if end == 0:
            return None
        delta = Delta(self._text[:end], self._held[:count])
        self._held = self._held[count:]
        self._text = self._text[end:]
        return delta

    def _cut(self, length: int) -> Delta | None:
        """The first `length` characters and their tokens; the last of those may lose its end."""
        tokens: list[TokenInfo] = []
        left = length
        for token in self._held:
            if left <= 0:
                break
            tokens.append(TokenInfo(token.id, token.text[:left], token.logprob, token.best))
            left -= len(token.text)
        return Delta(self._text[:length], tokens) if tokens else None
