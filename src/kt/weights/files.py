"""Files of a model: opened only if they are ordinary ones, mapped, and watched for getting shorter.

A pipe or a device would be waited for without an end. A map of a file that has become shorter kills
the process at the first touch of what is gone.
"""

from __future__ import annotations

import mmap
import os
import stat
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.machine import probe

Bytes = npt.NDArray[np.uint8]

AGAIN = "Download it again."


def open_regular(path: Path) -> IO[bytes]:
    """`path`, open for reading. Raises ModelError."""
    try:
        # A pipe without a writer would block right here.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ModelError(
            f"{path} does not exist", hint="Check the path, or download the file."
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ModelError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path) -> bytes:
    """The bytes of a small file. Raises ModelError."""
    with open_regular(path) as file:
        try:
            return file.read()
        except OSError as error:
            raise _unreadable(path, error) from None


def check_folder(folder: Path) -> None:
    """Raises ModelError for a folder that may not be read; one that does not exist passes."""
    try:
        os.stat(os.path.join(folder, os.curdir))  # which needs the right to enter it
        os.scandir(folder).close()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from None


@cache
def _guard() -> None:
    """Between a look at a file's length and reading its map the file can still be cut."""
    loaded = probe.load()
    if loaded is not None:
        message = f"error: a file of the model became shorter while it was in use\n{AGAIN}\n"
        loaded.guard_maps(message, ModelError.exit_code)


def map_file(path: Path) -> Bytes:
    """The bytes of `path` as a read-only map; nothing is read yet. Raises ModelError."""
    _guard()
    with open_regular(path) as file:
        try:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except ValueError:  # an empty file cannot be mapped
            raise ModelError(f"{path} is empty", hint=AGAIN) from None
        except OSError as error:
            raise _unreadable(path, error) from None


def check_length(data: npt.NDArray[np.generic], what: str) -> None:
    """Raises ModelError if `data` views a map whose file has become shorter, before or after the
    data is read. What is no view of a map passes.
    """
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap) and base.size() < len(base):
        raise ModelError(
            f"the file that holds {what} has become shorter while it was read "
            f"({len(base)} bytes before, {base.size()} now)",
            hint=AGAIN,
        )


def _unreadable(path: Path, error: Exception) -> ModelError:
    reason = error.strerror if isinstance(error, OSError) else error
    return ModelError(f"{str(path)[:300]} cannot be read: {reason or error}")
