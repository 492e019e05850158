"""Whether other processes use the same files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Share:
    """Marks a file as in use by this process, until close(). others: whether another process (or
    another Share of this one) had marked it already.

    A file that cannot be marked (some network file systems) counts as used by nobody else.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.others = False
        try:
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self.others = not self._alone()
        except OSError:
            self.close()

    def _alone(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # what a failure may have lost
            return False
        fcntl.flock(self._handle, fcntl.LOCK_SH)
        return True

    def close(self) -> None:
        """Takes the mark away. May be called again."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()
