"""Prompt lookup: guesses at the next tokens from the sequence's own history.

Saxena: Prompt lookup decoding (2023). What a text repeats, it mostly repeats for a while; one pass
then checks several guesses at the price of little more than one token.
"""

from __future__ import annotations

import numpy as np

from kt.engine.batch import I32

_PATTERNS = (3, 2)  # tokens that an earlier place must have in common with the end
_FIRST = 5  # with the known token before them six rows: one tile of the kernels
_MOST = 11


class Drafter:
    """Guesses for one sequence: more while they hold, fewer while they fail."""

    def __init__(self) -> None:
        self._size = _FIRST

    def propose(self, history: I32, room: int) -> tuple[int, ...]:
        """Up to `room` tokens that followed the last earlier occurrence of the history's end."""
        count = min(self._size, room)
        for size in _PATTERNS:
            after = _last_match(history, size)
            if after >= 0 and count > 0:
                # Behind the history's end the repetition itself is repeated.
                steps = np.arange(count) % (len(history) - after)
                return tuple(history[after + steps].tolist())
        return ()

    def learn(self, proposed: int, accepted: int) -> None:
        if accepted == proposed:
            self._size = min(2 * self._size + 1, _MOST)
        elif accepted == 0:
            self._size = max(self._size // 2, 1)


def _last_match(history: I32, size: int) -> int:
    """Index behind the last earlier place that reads like the last `size` tokens; -1: none."""
    starts = len(history) - size
    if starts <= 0:
        return -1
    hit = history[:starts] == history[-size]
    for i in range(1, size):
        hit &= history[i : starts + i] == history[i - size]
    places = np.flatnonzero(hit)
    return int(places[-1]) + size if len(places) else -1
