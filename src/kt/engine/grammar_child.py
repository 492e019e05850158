"""The process that tries grammars (grammar_trial.py): what runs in it."""

from __future__ import annotations

import ctypes
import json
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from kt.engine.grammar_source import Words, compiled, wrap
from kt.engine.request import Grammar

_MEMORY: Final = 4 << 30
"""Bytes of addresses, most of which are never touched."""
_TOKENS: Final = 4
_NO_ANSWER: Final = "NoExtension"


def serve(seconds: float, stack: int) -> None:
    """Tries grammars from stdin until it ends; a line of JSON each says what is wrong with them.

    seconds: SIGALRM ends the process after so many for one grammar. stack: bytes; less than in the
    process that takes over what has passed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _MEMORY if hard == resource.RLIM_INFINITY else min(hard, _MEMORY)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    threading.stack_size(max(stack, 1 << 16) & -4096)
    threading.Thread(target=_serve, args=(seconds,)).start()


def _serve(seconds: float) -> None:
    from llguidance import LLExecutor

    words: Words = pickle.load(sys.stdin.buffer)
    tokenizer, masks = wrap(words, _greedy(words)), LLExecutor(1)
    while True:
        try:
            grammar: Grammar = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        error = _error(tokenizer, masks, grammar, words)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(error) + "\n")
        sys.stdout.flush()


def _error(tokenizer: Any, masks: Any, grammar: Grammar, words: Words) -> str:
    """What is wrong with a grammar, as far as compiling it and writing some tokens tells."""
    matcher, error = compiled(tokenizer, grammar)
    if matcher is None:
        return error
    mask = (ctypes.c_uint32 * -(-len(words.tokens) // 32))()
    place = ctypes.addressof(mask), ctypes.sizeof(mask), 1
    for _ in range(_TOKENS):
        masks.unsafe_compute_mask_ptr([(matcher, 0)], *place)
        token = _first(mask, words.eos_ids)
        if token < 0 and matcher.is_accepting():
            return ""
        # What has failed allows an end where none may be; that brings out why.
        matcher.consume_token(words.eos_ids[0] if token < 0 else token)
        if matcher.is_error():
            error = str(matcher.get_error())
            return "no answer can match it" if error.startswith(_NO_ANSWER) else error
        if matcher.is_stopped():
            return ""
    return ""


def _first(mask: Any, but: Sequence[int]) -> int:
    """The lowest id that is allowed and no end, or -1."""
    for end in but:
        mask[end // 32] &= ~(1 << end % 32)
    for i, word in enumerate(mask):
        if word:
            return 32 * i + int(word & -word).bit_length() - 1
    return -1


def _greedy(words: Words) -> Any:
    """A text's ids, always the longest token that fits: enough to see whether a grammar works."""
    ids = {token: i for i, token in enumerate(words.tokens) if token}
    longest = max(map(len, ids), default=0)

    def encode(text: str) -> list[int]:
        data, at, found = text.encode(), 0, []
        while at < len(data):
            size = next((n for n in range(longest, 0, -1) if data[at : at + n] in ids), 0)
            if not size:
                break
            found.append(ids[data[at : at + size]])
            at += size
        return found

    return encode
