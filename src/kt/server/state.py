"""The file through which `kt chat` finds the running server: $KT_HOME/server.json."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

NAME = "server.json"
CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class ServerState:
    """A running server. url: http://host:port without a path. started: seconds since 1970."""

    url: str
    pid: int
    model: str
    started: float


def write(home: Path, state: ServerState) -> Path:
    """Replaces the file in one step; the last server started is found. Only its owner reads it."""
    home.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=home, prefix=NAME)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(state), file)
        os.replace(temporary, home / NAME)
    except BaseException:
        os.unlink(temporary)
        raise
    return home / NAME


def read(home: Path) -> ServerState | None:
    """The server that the file names if it lives; a file left by a dead one is removed."""
    path = home / NAME
    try:
        text = path.read_text()
    except OSError:
        return None
    state = _parse(text)
    if state is not None and _is_alive(state):
        return state
    _remove_if(path, text)
    return None


def remove(home: Path, pid: int) -> None:
    """Removes the file if it is the one of process `pid`."""
    path = home / NAME
    with suppress(OSError):
        text = path.read_text()
        state = _parse(text)
        if state is not None and state.pid == pid:
            _remove_if(path, text)


def _parse(text: str) -> ServerState | None:
    try:
        fields = json.loads(text)
        state = ServerState(
            str(fields["url"]), int(fields["pid"]), str(fields["model"]), float(fields["started"])
        )
        _address(state.url)
    except (ValueError, KeyError, TypeError):
        return None
    return state


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"not a server's URL: {url}")
    return parts.hostname, parts.port


def _is_alive(state: ServerState) -> bool:
    """Whether the process lives and its port takes connections; a slow answer counts as alive."""
    try:
        os.kill(state.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    try:
        socket.create_connection(_address(state.url), CONNECT_SECONDS).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _remove_if(path: Path, text: str) -> None:
    """Removes the file unless another server has replaced it meanwhile."""
    with suppress(OSError):
        if path.read_text() == text:
            path.unlink()
