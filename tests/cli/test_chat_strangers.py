"""kt chat and servers that speak something else, nothing at all, or too late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kt.chat import client as chat_client
from kt.chat.client import Client, Measures, NoServer, Refused, ServerGone
from kt.errors import UsageError

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: "
BODY = {"model": "m", "messages": []}


@pytest.fixture
def answering() -> Iterator[object]:
    """A server that gives every connection the same bytes; b"" none, without hanging up."""
    listeners = []

    def serve(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def go() -> None:
            kept = []
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=go, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    "events",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b"data: 5\n\n",
        b"data: \xff\n\n",
        b"data: " + b"[" * 50_000 + b"\n\n",
        b'data: {"choices":[{}]}\n\n',
        b'data: {"choices":5}\n\n',
        b'data: {"choices":[5]}\n\n',
        b'data: {"usage":"x","choices":[]}\n\n',
        b'data: {"choices":[{"delta":{"content":5}}]}\n\n',
        b'data: {"choices":[{"delta":[]}]}\n\n',
    ],
)
def test_events_of_another_form(answering, events):
    client = Client(answering(HEAD + b"text/event-stream\r\n\r\n" + events))
    with pytest.raises(NoServer, match="is not an OpenAI-compatible server"):
        list(client.stream(BODY, Measures()))


@pytest.mark.parametrize("error", [b'"boom"', b'{"message":5}', b"null"])
def test_errors_of_any_form(answering, error):
    events = b'data: {"error":' + error + b"}\n\n"
    client = Client(answering(HEAD + b"text/event-stream\r\n\r\n" + events))
    with pytest.raises(Refused):
        list(client.stream(BODY, Measures()))


def test_counts_that_are_null_are_none(answering):
    events = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    events += b'data: {"usage":{"completion_tokens":null},"choices":null}\n\ndata: [DONE]\n\n'
    client = Client(answering(HEAD + b"text/event-stream\r\n\r\n" + events))
    measures = Measures()
    assert list(client.stream(BODY, measures)) == ["a"]
    assert (measures.tokens, measures.prompt_tokens) == (1, 0)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"data":5}', b"[" * 50_000, b"\xff"])
def test_models_of_another_form(answering, body):
    client = Client(answering(HEAD + b"application/json\r\n\r\n" + body))
    with pytest.raises(NoServer, match="is not an OpenAI-compatible server"):
        client.model()
    assert not client.names_temperature()


def test_what_is_no_http(answering):
    client = Client(answering(b"SSH-2.0-OpenSSH_9.6\r\n"))
    with pytest.raises(NoServer):
        client.model()


def test_a_server_that_is_stopped(answering, monkeypatch):
    monkeypatch.setattr(chat_client, "READ_SECONDS", 0.2)
    monkeypatch.setattr(chat_client, "ANSWER_TIMEOUT", 0.2)
    client = Client(answering(b""))
    with pytest.raises(NoServer, match="has not answered for"):
        client.model()
    with pytest.raises(ServerGone, match="has sent nothing for"):
        list(client.stream(BODY, Measures()))


@pytest.mark.parametrize("key", ["\u00e9", "a\nb", "a\rb", "\ud800", "x\x00"])
def test_keys_that_no_header_can_hold(key):
    with pytest.raises(UsageError, match="printable ASCII"):
        Client("http://127.0.0.1:1", key)


@pytest.mark.parametrize("host", ["a" * 70 + ".b", "a" * 5000, "a..b", "xn--"])
def test_hosts_that_cannot_be(host):
    with pytest.raises((UsageError, NoServer)):
        Client(f"http://{host}:1").model()
