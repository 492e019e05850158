"""A process of its own in which a grammar is tried before the engine's takes it.

llguidance has no bound on the time that a grammar takes it, and one that nests too deeply overflows
its stack, which ends the process. So both happen to this one, and the server tells the client.
"""

from __future__ import annotations

import json
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from kt.engine.grammar_source import Words
from kt.engine.request import EngineClosed, Grammar
from kt.errors import KtError

SECONDS: Final = 10.0
"""What a grammar may take."""

_CODE: Final = """
import sys
sys.path[:] = sys.argv[3:]
from kt.engine.grammar_child import serve
serve(float(sys.argv[1]), int(sys.argv[2]))
"""
_ITS_OWN: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT)
"""What ends the process if a grammar overflows its stack, or its memory."""
_REMEMBERED: Final = 64
_USUAL_STACK: Final = 2 << 20
"""Bytes of a thread's stack where the main thread's has no limit: glibc's choice."""


class TooMuch(KtError):
    """A grammar that took too long, or that llguidance did not survive."""


class Trial:
    """words: the model's tokens. The process starts with it, and again after it has ended. For any
    thread.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._lock = threading.Lock()
        self._closed = False
        self._too_much: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        self._process: subprocess.Popen[bytes] | None = self._start()

    def error(self, grammar: Grammar) -> str:
        """What llguidance has against it, "" for nothing. Raises TooMuch, EngineClosed."""
        with self._lock:
            if self._closed:
                raise _closing()
            for key, message in self._too_much:  # a client may try again and again
                if key == hash(grammar):
                    raise TooMuch(message)
            for _ in range(2):
                reply = self._ask(self._living(), grammar)
                if reply.endswith(b"\n"):
                    return str(json.loads(reply))
                error = self._obituary()
                if error is not None:
                    break
            if isinstance(error, TooMuch):
                self._too_much.append((hash(grammar), error.message))
            raise error or KtError("the process that tries grammars is killed again and again")

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._drop()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _CODE, str(SECONDS), str(_stack() // 2), *sys.path]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with suppress(OSError):  # it has ended, as the first grammar will tell
            assert process.stdin is not None
            pickle.dump(self._words, process.stdin)
            process.stdin.flush()
        return process

    def _ask(self, process: subprocess.Popen[bytes], grammar: Grammar) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            pickle.dump(grammar, process.stdin)
            process.stdin.flush()
        return process.stdout.readline()

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._drop()
            self._process = self._start()
        return self._process

    def _obituary(self) -> KtError | None:
        """Why there was no reply; None if somebody killed the process, which says nothing about the
        grammar."""
        assert self._process is not None
        status = self._process.wait()
        self._drop()
        if self._closed:
            return _closing()
        if status == -signal.SIGALRM:
            return TooMuch(f"compiling it takes longer than {SECONDS:g} seconds")
        if -status in _ITS_OWN:
            return TooMuch("it is too large, or nested too deeply, to be compiled")
        if status < 0:
            return None
        return KtError(f"the process that tries grammars has ended with status {status}")

    def _drop(self) -> None:
        """Collects a process that has ended, or will."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError):  # what was not written to it any more
                process.communicate()


def _closing() -> EngineClosed:
    return EngineClosed("the engine is shutting down")


def _stack() -> int:
    """Bytes of a thread's stack in this process."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _USUAL_STACK if limit == resource.RLIM_INFINITY else limit
