"""How many prompt tokens a step may compute while answers are running."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kt.engine.batch import Batch, Executor
from kt.units import Choice

STEP_SECONDS = 0.2
"""The longest pause in a running answer that a new prompt should cause."""
_LONG_PROMPT = 4096
"""Tokens. Attention makes later chunks dearer than early ones; the last of these sets the pace."""
_UNIT = 32


def measure(executor: Executor, limit: int) -> Choice[int]:
    """Times the largest prefill and a small one at the end of a long prompt, and chooses from that.

    limit: the longest sequence. Pages are written. Raises KtError.
    """
    end = min(limit, _LONG_PROMPT)
    most = min(executor.max_batch_tokens, end)
    few = min(_UNIT, most)
    long = _seconds(lambda: _prefill(executor, end - most, most))
    short = _seconds(lambda: _prefill(executor, end - few, few))
    per_token = max(long - short, 0.0) / max(most - few, 1)
    return choose(max(short - per_token * few, 0.0), per_token, most)


def choose(fixed: float, per_token: float, most: int) -> Choice[int]:
    """fixed: seconds of a step before its first token; most: tokens that a step can hold.

    A step takes STEP_SECONDS, or twice its fixed time where that is longer: with less, large models
    would read their experts again for every few tokens.
    """
    target = max(STEP_SECONDS, 2 * fixed)
    if fixed + per_token * most <= target:
        seconds = fixed + per_token * most
        return Choice(most, f"all that a step can hold, measured at {seconds * 1e3:.0f} ms")
    tokens = int((target - fixed) / per_token) // _UNIT * _UNIT
    tokens = min(max(tokens, _UNIT), most)
    seconds = fixed + per_token * tokens
    return Choice(
        tokens,
        f"a step takes {seconds * 1e3:.0f} ms: measured {fixed * 1e3:.1f} ms and "
        f"{per_token * 1e3:.2f} ms a token",
    )


def _prefill(executor: Executor, first: int, tokens: int) -> None:
    """A chunk behind `first` positions; what their pages hold does not matter."""
    pages = np.arange(-(-(first + tokens) // executor.page_tokens), dtype=np.int32)
    executor.forward(
        Batch(
            tokens=np.zeros(tokens, np.int32),
            seq_start=np.array([0, tokens], np.int32),
            first_position=np.array([first], np.int32),
            page_table=pages.reshape(1, -1),
            logit_rows=np.array([tokens - 1], np.int32),
        )
    )


def _seconds(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
