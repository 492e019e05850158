"""Connections: clients that end their side, that leave, and that send slowly."""

from __future__ import annotations

import json
import socket
import time

import pytest

from kt.server import connection as connections
from tests.fakes import FakeExecutor, replying
from tests.server.harness import MODEL


def open_(server) -> socket.socket:
    name, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((name, int(port)))
    made.settimeout(10)
    return made


def request(**fields) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def read_all(made: socket.socket) -> bytes:
    parts = []
    while part := made.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_ends_its_side_gets_its_answer(serve, stream, version):
    server = serve(FakeExecutor(reply=replying("grey"), latency=0.1))
    with open_(server) as made:
        made.sendall(request(stream=stream).replace(b"HTTP/1.1", version))
        made.shutdown(socket.SHUT_WR)
        answer = read_all(made)  # and the server hangs up
    assert b" 200 OK" in answer
    if stream:
        assert answer.count(b'"content":') == 1 + 4
        assert b"data: [DONE]" in answer
    else:
        assert b'"grey"' in answer
    server.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_ends_its_side_and_leaves_later_is_noticed(serve, stream):
    server = serve(FakeExecutor(latency=0.01, context=100_000, n_pages=12_500))
    made = open_(server)
    made.sendall(request(stream=stream, max_tokens=90_000, ignore_eos=True))
    made.shutdown(socket.SHUT_WR)
    time.sleep(0.3)
    assert server.engine.stats().running == 1
    made.close()
    server.wait_until_idle(3.0)


@pytest.mark.parametrize("part", [b"", b"POST /v1/cha", request()[:-3]])
def test_a_request_that_does_not_come_is_dropped(serve, monkeypatch, part):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    server = serve(FakeExecutor())
    with open_(server) as made:
        made.sendall(part)
        started = time.monotonic()
        assert read_all(made) == b""
        assert 0.1 < time.monotonic() - started < 5


def test_an_answer_may_take_longer_than_a_request(serve, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    server = serve(FakeExecutor(reply=replying("long"), latency=0.15))
    for _ in range(2):  # on one connection
        assert server.chat().status_code == 200
