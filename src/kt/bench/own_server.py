"""A `kt run` of one's own, for as long as it is measured."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kt.errors import KtError

_END_SECONDS: Final = 15.0
"""More than the server needs to end by itself."""


class NotStarted(KtError):
    """The server ended before it was ready; message and exit status are its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def _end_with_parent() -> None:
    """Also where the parent is killed and can tidy up nothing."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@contextmanager
def started(model: str, options: Sequence[str]) -> Iterator[str]:
    """The URL of a server for `model` on a free port, which ends with the context.

    Raises NotStarted.
    """
    command = [sys.executable, "-m", "kt", "run", model, "--port", "0", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=_end_with_parent
        )
        try:
            assert process.stdout is not None
            ready = re.match(r"Ready: (\S+)/v1", process.stdout.readline())
            if ready is None:
                status = process.wait(_END_SECONDS)
                log.seek(0)
                raise NotStarted(
                    f"kt run {model} did not start:\n{log.read().strip()}",
                    status if status > 0 else NotStarted.exit_code,
                )
            yield ready[1]
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
