"""What every request passes first: its id, the API key, its size, one line in the log."""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kt.server.errors import ApiError, internal
from kt.units import MIB, format_bytes

log = logging.getLogger("kt.server")

MAX_BODY = 8 * MIB
# A client that is told 413 while it still sends may lose the answer, so this much is read and
# dropped first.
MAX_DRAIN = 64 * MIB
# The page holds nothing secret; it asks its user for the key.
OPEN_PATHS = frozenset({"/health", "/", "/favicon.ico"})
LOCAL_NAME = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """ASGI middleware. Without API keys it answers only requests addressed to a loopback name.

    That keeps web pages out: a page can point its own domain at 127.0.0.1, but cannot choose the
    Host header.
    """

    def __init__(
        self, app: ASGIApp, *, api_keys: Sequence[str] = (), max_body: int = MAX_BODY
    ) -> None:
        self.app = app
        self.api_keys = [key.encode() for key in api_keys]
        self.max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await _Passage(self, scope, receive, send).run()

    def check(self, headers: Headers, path: str) -> None:
        """Raises ApiError for a request that may not come in."""
        if not self.api_keys:
            if not LOCAL_NAME.fullmatch(headers.get("host", "localhost")):
                message = (
                    "this server has no API key and answers only to localhost; start it with "
                    "--api-key to reach it under other names"
                )
                raise ApiError(403, message, code="host_not_allowed")
        elif path not in OPEN_PATHS:
            self._check_key(headers)

    def _check_key(self, headers: Headers) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Anthropic's clients send the other one.
        sent = [given if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        if not any(sent):
            message = "an API key is required: Authorization: Bearer KEY"
        else:
            # Every key is compared, each in constant time. Headers arrive as latin-1.
            raw = [one.strip().encode("latin-1") for one in sent if one]
            matches = [hmac.compare_digest(one, key) for one in raw for key in self.api_keys]
            if any(matches):
                return
            message = "this API key is not valid here"
        challenge = {"www-authenticate": "Bearer"}
        raise ApiError(401, message, code="invalid_api_key", headers=challenge)


class _Passage:
    """One request on its way through the gate."""

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        self.id = asked if CLIENT_ID.fullmatch(asked) else f"req_{uuid.uuid4().hex[:24]}"
        self.headers = headers
        self._gate = gate
        self._scope = scope
        self._receive = receive
        self._send = send
        self._received = 0
        self._status = 0
        self._more_body = True
        scope.setdefault("state", {})["request_id"] = self.id

    async def run(self) -> None:
        start = time.monotonic()
        try:
            self._gate.check(self.headers, self._scope["path"])
            self._check_length()
            await self._gate.app(self._scope, self.receive, self.send)
        except ApiError as error:
            await self._refuse(error)
        except Exception as error:
            await self._refuse(internal(error))
        finally:
            # ascii(): a path may hold line breaks, which could forge lines of the log.
            path = ascii(self._scope["path"])[1:-1]
            seconds = time.monotonic() - start
            # A stream whose client has left began with 200.
            status = self._scope["state"].get("status", self._status)
            line = (self._scope["method"], path, status, seconds, self.id)
            log.info("%s %s %s %.3f s %s", *line)

    def _check_length(self) -> None:
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._gate.max_body:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            self._more_body = message.get("more_body", False)
            if self._received > self._gate.max_body:
                raise self._too_large()
        return message

    def _too_large(self) -> ApiError:
        limit = format_bytes(self._gate.max_body)
        message = f"the body is larger than {limit}, the most that this server reads"
        return ApiError(413, message, code="request_too_large", headers={"connection": "close"})

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status == 413:
                await self._drain()
            id_ = self.id.encode()
            named = ((b"x-request-id", id_), (b"request-id", id_))
            message["headers"] = [*message.get("headers", ()), *named]
        await self._send(message)

    async def _drain(self) -> None:
        while self._more_body and self._received < MAX_DRAIN:
            message = await self._receive()
            if message["type"] != "http.request":
                return
            self._received += len(message.get("body", b""))
            self._more_body = message.get("more_body", False)

    async def _refuse(self, error: ApiError) -> None:
        if not self._status:
            await error.response(self._scope["path"])(self._scope, self._receive, self.send)
