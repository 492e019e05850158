"""The files through which `kt chat` finds running servers: $KT_HOME/server-PID.json, one each."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

NAMES = "server-*.json"
CONNECT_SECONDS = 2.0
MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class ServerState:
    """A running server. url: http://host:port without a path. started: seconds since 1970. names:
    what else `model` is called, the path of its files among them."""

    url: str
    pid: int
    model: str
    started: float
    names: tuple[str, ...] = ()

    def serves(self, name: str) -> bool:
        """Whether `name` means its model."""
        return name == self.model or name in self.names


def write(home: Path, state: ServerState) -> Path:
    """Writes the server's file in one step; only its owner can read it."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"server-{state.pid}.json"
    handle, temporary = tempfile.mkstemp(dir=home, prefix=".server")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(state), file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def living(home: Path) -> list[ServerState]:
    """The servers that live, the last one started first; files left by dead ones are removed."""
    found = []
    for path in _files(home):
        text = _read(path)
        if text is None:
            continue
        state = _parse(text)
        if state is not None and _is_alive(state):
            found.append(state)
        else:
            _remove_if(path, text)
    return sorted(found, key=lambda state: state.started, reverse=True)


def _files(home: Path) -> list[Path]:
    try:
        return sorted(home.glob(NAMES))
    except OSError:  # a home whose name cannot be one
        return []


def _read(path: Path) -> str | None:
    """What a state file holds; None for what is none, a pipe say."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.read(handle, MAX_BYTES).decode(errors="replace")
    finally:
        os.close(handle)


def read(home: Path) -> ServerState | None:
    """The last server started of those that live."""
    return next(iter(living(home)), None)


def remove(home: Path, pid: int) -> None:
    """Removes the file of process `pid`."""
    with suppress(OSError):
        (home / f"server-{pid}.json").unlink()


def _parse(text: str) -> ServerState | None:
    try:
        fields = json.loads(text)
        state = ServerState(
            str(fields["url"]),
            int(fields["pid"]),
            str(fields["model"]),
            float(fields["started"]),
            tuple(map(str, fields.get("names", ()))),
        )
        _address(state.url)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    # Numbers below 1 mean groups of processes.
    return state if 0 < state.pid < 1 << 31 else None


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"not a server's URL: {url}")
    return parts.hostname, parts.port


def _is_alive(state: ServerState) -> bool:
    """Whether the process lives and its port takes connections; a slow answer counts as alive."""
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        socket.create_connection(_address(state.url), CONNECT_SECONDS).close()
    except TimeoutError:
        return True
    except (OSError, ValueError):  # ValueError: a host that cannot be one
        return False
    return True


def _remove_if(path: Path, text: str) -> None:
    """Removes the file unless another server has replaced it meanwhile."""
    with suppress(OSError):
        if _read(path) == text:
            path.unlink()
