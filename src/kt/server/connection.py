"""One HTTP connection: uvicorn's, but slow senders are dropped, and a client that has ended its own
side of the connection still gets its answer.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 120.0
"""From the first byte of a request, or the connection's beginning, to the request's end."""
PROBE_SECONDS: Final = (0.05, 1.0)
"""After the client has ended its side: when it is first looked for, and how often later."""
STREAM_MARK: Final = "kt.stream"
"""Key of a scope whose response is a stream of events."""

_WHOLE: Final = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
_TCP_CLOSE: Final = 7  # as in linux/tcp_states.h


class Connection(H11Protocol):
    """A client that has left and one that has ended its side look the same until something is sent
    to them: so an interim response, or a comment in a stream of events, is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._mind()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._mind()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open for writing."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.conn.their_state not in _WHOLE:
            return False
        cycle.keep_alive = False
        self.loop.call_soon(self._probe, PROBE_SECONDS[0])
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._unmind()
        super().connection_lost(exc)

    def _mind(self) -> None:
        if self.conn.their_state in _WHOLE:
            self._unmind()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _unmind(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _probe(self, pause: float) -> None:
        """Sends something that the client will ignore, and sees a moment later what came of it."""
        cycle = self.cycle
        if self.transport.is_closing() or cycle.response_complete:
            return
        if not cycle.response_started:
            if cycle.scope["http_version"] == "1.1":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif cycle.scope.get(STREAM_MARK):
            self.transport.write(self.conn.send(h11.Data(data=b":\n\n")) or b"")
        self.loop.call_later(pause, self._look)

    def _look(self) -> None:
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        end = self.transport.get_extra_info("socket")
        state = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _TCP_CLOSE:
            self.transport.abort()
        else:
            self._probe(PROBE_SECONDS[1])
