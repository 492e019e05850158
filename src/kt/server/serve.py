"""Runs the application on a socket until a signal ends it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from kt.errors import UsageError
from kt.server import state
from kt.server.connection import Connection
from kt.server.generation import Generations

log = logging.getLogger("kt.server")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
BACKLOG = 1024
# In-flight answers may finish for this many seconds after the first signal; then they are told and
# ended.
GRACE_SECONDS = 7.0
LAST_SECONDS = 2.0
NOW_SECONDS = 0.5  # after the second signal, twice
SHUTTING_DOWN = "the server is shutting down"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def reserve(host: str, port: int, *, api_keys: Sequence[str] = ()) -> socket.socket:
    """A listening socket, to be taken before a model is loaded; early clients wait in its queue.

    port 0 takes a free one. Raises UsageError: the port is taken or not allowed, the host is not
    an address of this machine, or others could reach it and there is no API key.
    """
    if not all(key.strip() for key in api_keys):
        raise UsageError("an API key is empty", hint="give --api-key a long random text")
    if not host.strip():
        raise UsageError("--host is empty", hint=f"leave it out to listen on {DEFAULT_HOST}")
    if not is_loopback(host) and not api_keys:
        raise UsageError(
            f"anyone who reaches {host} could use this server",
            hint=f"give it --api-key KEY, or listen on {DEFAULT_HOST}",
        )
    if not 0 <= port <= 65535:
        raise UsageError(
            f"{port} is not a port", hint="Choose one from 1 to 65535, or 0 for a free one."
        )
    try:
        return _listen(host, port)
    except OSError as error:
        raise _explain(error, host, port) from error


def check_port(host: str, port: int, *, api_keys: Sequence[str] = ()) -> None:
    """Raises the UsageError that `reserve` would raise now."""
    reserve(host, port, api_keys=api_keys).close()


def _listen(host: str, port: int) -> socket.socket:
    kind = socket.SOCK_STREAM
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, answers wait 40
    # ms.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _explain(error: OSError, host: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        hint = "stop the program that uses it, or choose another with --port (0: any free one)"
        return UsageError(f"port {port} on {host} is already in use", hint=hint)
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is not allowed to this user", hint="choose one above 1023")
    return UsageError(f"cannot listen on {host}: {error.strerror or error}")


def url_of(listener: socket.socket) -> str:
    """The URL under which this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if listener.family == socket.AF_INET6 else DEFAULT_HOST
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    app: FastAPI,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    *,
    listener: socket.socket | None = None,
    home: Path | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or SIGHUP, then lets answers finish for some seconds; a second
    signal ends at once.

    listener: what `reserve` gave (host and port are then unused). home: where the state file lives
    while the server runs. ready: called with the URL once requests are answered. Raises UsageError
    like `reserve`. Call it from the main thread, or it takes no signals; the engine is still the
    caller's to close.
    """
    listener = listener or reserve(host, port, api_keys=app.state.api_keys)
    server = Server(app, lambda: _announce(app, listener, home, ready))
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if home is not None:
            state.remove(home, os.getpid())


def _announce(
    app: FastAPI, listener: socket.socket, home: Path | None, ready: Callable[[str], None] | None
) -> None:
    url = url_of(listener)
    if home is not None:
        names = tuple(sorted(app.state.names))
        found = state.ServerState(url, os.getpid(), app.state.model, time.time(), names)
        try:
            state.write(home, found)
        except OSError as error:
            log.warning("kt chat will need --url %s: cannot write to %s (%s)", url, home, error)
    if ready is not None:
        ready(url)


class Server(uvicorn.Server):
    """uvicorn's server, but it tells running streams that it ends and returns after a signal."""

    def __init__(self, app: FastAPI, announce: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            access_log=False,
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(GRACE_SECONDS + LAST_SECONDS),
        )
        super().__init__(config)
        self._generations: Generations = app.state.generations
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._generations.close(SHUTTING_DOWN)
        if running := self._generations.running:
            message = "%d unfinished: at most %d s more, and a second Ctrl-C or signal ends at once"
            log.info(message, running, GRACE_SECONDS)
        grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._generations.stop)
        try:
            await super().shutdown(sockets)
        finally:
            grace.cancel()
        if self.force_exit:
            await self._end_now()

    async def _end_now(self) -> None:
        """Tells the clients, and leaves those whose answers do not end at once."""
        self._generations.stop()
        await self._tasks_end()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._tasks_end()

    async def _tasks_end(self) -> None:
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=NOW_SECONDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's, but no signal is raised again: the caller has an engine to close."""
        before = {}
        with suppress(ValueError):  # not in the main thread
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup kt run ...
                    before[number] = signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: object) -> None:
        """The first signal asks for an end, the second one for an end now."""
        self.force_exit = self.should_exit
        self.should_exit = True
