"""One streamed completion over HTTP, with the time of every piece."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from kt.errors import KtError

_PATH: Final = "/v1/completions"
_READ: Final = 1 << 16


class BadAnswer(KtError):
    """The server refuses, breaks off, or does not speak this API."""


@dataclass(frozen=True)
class Stream:
    """What one request took. began: when it was sent, arrivals: when each piece of text came, both
    on the monotonic clock in seconds; tokens: as the server counted them.
    """

    began: float
    arrivals: tuple[float, ...]
    tokens: int

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.arrivals[0] - self.began

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Requester:
    """Sends requests over one connection. It only notes what comes and when, and reads it
    afterwards: on a small machine the client takes its time from the server.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        parts = urlsplit(url)
        https = parts.scheme == "https"
        connection = http.client.HTTPSConnection if https else http.client.HTTPConnection
        self._connection = connection(parts.netloc, timeout=timeout)
        self._path = parts.path.rstrip("/") + _PATH
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def connect(self) -> None:
        """Anew: a server may have closed a connection that was idle. Raises OSError."""
        self._connection.close()
        self._connection.connect()
        self._socket = self._connection.sock

    def abort(self) -> None:
        """Ends a request that another thread waits for; its `stream` raises."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def stream(self, fields: Mapping[str, Any]) -> Stream:
        """One request to its end. Raises BadAnswer, OSError, http.client.HTTPException."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({**fields, **options}).encode()
        began = time.monotonic()
        self._connection.request("POST", self._path, body, self._headers)
        response = self._connection.getresponse()
        if response.status != http.client.OK:
            raise BadAnswer(_refusal(response.status, response.read()))
        heard: list[tuple[float, bytes]] = []
        rest = b""
        while data := response.read1(_READ):
            now = time.monotonic()
            *events, rest = (rest + data).split(b"\n\n")
            heard += [(now, event) for event in events]
        return _read(began, heard)


def _read(began: float, heard: list[tuple[float, bytes]]) -> Stream:
    arrivals = []
    tokens = 0
    for when, event in heard:
        data = event.removeprefix(b"data:").strip()
        if not event.startswith(b"data:") or data == b"[DONE]":
            continue
        try:
            content = json.loads(data)
            if "error" in content:
                raise BadAnswer(f"the server broke off: {content['error']}")
            if content.get("usage"):
                tokens = content["usage"]["completion_tokens"]
            if any(choice["text"] for choice in content["choices"]):
                arrivals.append(when)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise BadAnswer(f"the server sends what is no completion: {data[:80]!r}") from None
    if not arrivals:
        raise BadAnswer("the server answers without any text")
    return Stream(began, tuple(arrivals), tokens or len(arrivals))


def _refusal(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"the server answers {status}: {message}"
