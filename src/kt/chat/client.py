"""Talks to a server that speaks OpenAI's chat completions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from kt import words
from kt.errors import KtError, UsageError
from kt.server import state

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
ANSWER_SECONDS = 1800.0
"""Between two pieces of an answer: a long prompt on a slow machine takes its time."""
OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer raises that is not in the API's form."""
RATE_TOKENS, RATE_SECONDS = 8, 0.1
"""Of a shorter answer the rate is that of sockets and screens, not of the model."""
ANSWER_TIMEOUT = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
START_HINT = "start one in another terminal with: kt run MODEL"
OR_TINY = ", or ask the model inside kt: kt chat --model tiny"


class NoServer(KtError):
    """Nothing answers where a server was expected."""


class Thought(str):
    """What a model thinks before it answers; shown, but no part of the conversation."""


class ServerGone(KtError):
    """The connection broke in the middle of an answer."""


class Refused(KtError):
    """The server answered with an error; the message is the server's."""


@dataclass
class Measures:
    """What one answer took. first: seconds to the first text; decode: seconds from there to the
    end.
    """

    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    decode: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str = ""

    def heard(self) -> None:
        """Some text arrived. A server that reports no usage is assumed to send a token at a
        time.
        """
        now = time.monotonic() - self.started
        if self.first is None:
            self.first = now
        self.decode = now - self.first
        self.tokens += 1

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first one; None where too few came, or too fast to tell."""
        told = self.tokens >= RATE_TOKENS and self.decode >= RATE_SECONDS
        return (self.tokens - 1) / self.decode if told else None


def find_url(url: str | None, home: Path, say: Callable[[str], None]) -> str:
    """`url` (an address, a port, with the API's path or without) as the base of a server's URLs, or
    that of the newest server running here; `say` is told if there are several. Raises NoServer,
    UsageError.
    """
    if url is None:
        return _newest(home, say)
    full = url if "://" in url else f"http://{url}"
    if re.match(r"\d+(/|$)", url):
        full = f"http://127.0.0.1:{url}"
    if not words.is_web_address(full):
        raise UsageError(f"{url!r} is not a server's URL", hint="for example http://127.0.0.1:8000")
    return re.sub(r"(/v1(/.*)?|/health)?/*$", "", full)


def _newest(home: Path, say: Callable[[str], None]) -> str:
    found = state.living(home)
    if not found:
        raise NoServer("no kt server is running here", hint=START_HINT + OR_TINY)
    first, *others = found
    if others:
        choices = ", ".join(f"--url {server.url} asks {server.model}" for server in others)
        say(f"{len(found)} servers run here; this is {first.model} at {first.url}; {choices}")
    return first.url


class Answers(Protocol):
    """What a conversation needs of whoever answers. where: for the greeting."""

    @property
    def where(self) -> str: ...

    def model(self) -> str: ...

    def names_temperature(self) -> bool: ...

    def stream(self, body: dict[str, Any], measures: Measures) -> Generator[str, None, None]: ...

    def close(self) -> None: ...


class Client:
    """One server, by its base URL."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise UsageError("an API key is printable ASCII text", hint="check --api-key")
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        try:
            self._http = httpx.Client(
                base_url=url, headers=headers, timeout=timeout, trust_env=not local
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(f"{url[:200]} is not a server's URL: {error}") from None

    @property
    def where(self) -> str:
        return f"at {self.url}"

    def close(self) -> None:
        self._http.close()

    def model(self) -> str:
        """The name of the model that is served. Raises NoServer, Refused."""
        response = self._get("/v1/models")
        if response.status_code != 200:
            raise _refusal(response.status_code, response.text)
        try:
            return str(response.json()["data"][0]["id"])
        except OTHER_FORM:
            raise self._stranger() from None

    def names_temperature(self) -> bool:
        """Whether the served model's own files say how to sample it; servers other than kt do not
        tell. Raises NoServer.
        """
        response = self._get("/health")
        try:
            return "temperature" in response.json()["sampling"]["value"]
        except OTHER_FORM:
            return False

    def stream(self, body: dict[str, Any], measures: Measures) -> Generator[str, None, None]:
        """Pieces of the text as they come, of thoughts as Thought; `measures` fills meanwhile.

        Closing the iterator tells the server to stop. Raises NoServer, Refused, ServerGone.
        """
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._http.stream(
                "POST", "/v1/chat/completions", json=body, timeout=ANSWER_TIMEOUT
            ) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, response.read().decode(errors="replace"))
                yield from _texts(response.iter_bytes(), measures)
        except httpx.ReadTimeout as error:
            raise ServerGone(f"the server has sent nothing for {ANSWER_SECONDS:.0f} s") from error
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except (httpx.TransportError, httpx.StreamError) as error:
            raise _gone() from error
        except (*OTHER_FORM, httpx.HTTPError):
            raise self._stranger() from None

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._http.get(path)
        except httpx.ReadTimeout as error:
            message = f"what listens at {self.url} has not answered for {READ_SECONDS:.0f} s"
            raise NoServer(message, hint="Is the server stopped, or its machine asleep?") from error
        except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
            raise self._unreachable(error) from error
        except httpx.HTTPError as error:
            raise self._stranger() from error

    def _unreachable(self, error: Exception) -> NoServer:
        return NoServer(f"no server answers at {self.url[:200]} ({error})", hint=START_HINT)

    def _stranger(self) -> NoServer:
        message = f"what answers at {self.url} is not an OpenAI-compatible server"
        return NoServer(message, hint=START_HINT)


def _gone() -> ServerGone:
    message = "the server went away in the middle of the answer"
    return ServerGone(message, hint="see the terminal in which `kt run` was started")


def _refusal(status: int, text: str) -> Refused:
    hint = "give the key with --api-key" if status == 401 else ""
    try:
        error = json.loads(text)["error"]
        message = str(error["message"])
        if error.get("code") == "model_not_found":  # it names the one that is
            hint = "leave out --model, or give the name of the one that is served"
    except OTHER_FORM:
        message = f"the server answered with status {status}"
    return Refused(message, hint=hint)


def _texts(chunks: Iterable[bytes], measures: Measures) -> Iterator[str]:
    """Raises what Python raises for an object of another form than the API's."""
    for data in _events(chunks):
        if "error" in data:
            raise _refusal(500, json.dumps(data))
        if usage := data.get("usage"):
            measures.tokens = int(usage.get("completion_tokens") or measures.tokens)
            measures.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        for choice in data.get("choices") or ():
            measures.finish_reason = choice.get("finish_reason") or measures.finish_reason
            delta = choice["delta"]
            for kind, field_name in ((Thought, "reasoning_content"), (str, "content")):
                text = delta.get(field_name) or ""
                if not isinstance(text, str):
                    raise TypeError(field_name)
                if text:
                    measures.heard()
                    yield kind(text)


def _events(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream. Raises ServerGone if it ends before
    [DONE].
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            found = json.loads(data)
            if not isinstance(found, dict):
                raise TypeError("an event is an object")
            yield found
    raise _gone()
