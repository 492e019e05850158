"""A client that leaves frees its place at once, wherever its request is."""

from __future__ import annotations

import logging
import socket
import threading
import time

import httpx
import pytest

from tests.fakes import FakeExecutor
from tests.server.harness import MODEL, Running, TextTokenizer


def wait_for(server: Running, condition) -> None:
    end = time.monotonic() + 5
    while not condition(server.engine.stats()):
        assert time.monotonic() < end, server.engine.stats()
        time.sleep(0.005)


def raw_request(server: Running, stream: bool, prompt: str = "hello") -> socket.socket:
    """Sends a request for a very long answer and leaves the reading to the caller."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
    return raw_post(server, "/v1/chat/completions", {**body, "ignore_eos": True, "stream": stream})


def raw_post(server: Running, path: str, body: object) -> socket.socket:
    request = httpx.Request("POST", f"{server.url}{path}", json=body)
    host = server.url.removeprefix("http://")
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(request.content)}\r\n\r\n"
    name, port = host.split(":")
    connection = socket.create_connection((name, int(port)))
    connection.sendall(head.encode() + request.content)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_in_decode(serve, stream):
    server = serve(FakeExecutor(latency=0.01, context=100_000, n_pages=12_500))
    connection = raw_request(server, stream)
    wait_for(server, lambda stats: stats.completion_tokens > 3)
    connection.close()
    server.wait_until_idle(1.0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_in_the_other_forms(serve, path, stream):
    executor = FakeExecutor(latency=0.01, context=100_000, n_pages=12_500, reply=lambda _: ord("x"))
    server = serve(executor)
    body = {"model": MODEL, "stream": stream, "max_tokens": 90_000}
    body["messages"] = [{"role": "user", "content": "x"}]
    if path == "/v1/responses":
        body = {"model": MODEL, "stream": stream, "input": "x"}
    connection = raw_post(server, path, body)
    wait_for(server, lambda stats: stats.completion_tokens > 3)
    connection.close()
    server.wait_until_idle(1.0)


def test_embeddings_that_nobody_waits_for(serve):
    server = serve(FakeExecutor(latency=0.02, context=1000, max_batch_tokens=16))
    body = {"model": MODEL, "input": ["x" * 400] * 30}
    connection = raw_post(server, "/v1/embeddings", body)
    wait_for(server, lambda stats: stats.pages_free < stats.pages_total)
    connection.close()
    server.wait_until_idle(3.0)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_is_no_failure_of_the_server(serve, caplog, stream):
    server = serve(FakeExecutor(latency=0.01, context=100_000, n_pages=12_500))
    with caplog.at_level(logging.INFO, "kt.server"):
        connection = raw_request(server, stream)
        wait_for(server, lambda stats: stats.completion_tokens > 3)
        connection.close()
        server.wait_until_idle(1.0)
        wait_for(server, lambda _: " /v1/chat/completions " in caplog.text)
    assert " /v1/chat/completions 499 " in caplog.text
    assert "ERROR" not in caplog.text
    assert 'kt_answers_total{reason="cancelled"} 1.0\n' in server.http.get("/metrics").text


@pytest.mark.parametrize("stream", [True, False])
def test_in_prefill(serve, stream):
    # 512 tokens a step: the prompt takes 20 steps of 50 ms.
    server = serve(FakeExecutor(latency=0.05, context=20_000, n_pages=2500))
    connection = raw_request(server, stream, "x" * 10_000)
    wait_for(server, lambda stats: stats.running == 1)
    connection.close()
    server.wait_until_idle(0.8)
    assert server.engine.stats().completion_tokens == 0


@pytest.mark.parametrize("stream", [True, False])
def test_while_queued(serve, stream):
    server = serve(FakeExecutor(latency=0.01, context=100_000, n_pages=12_500))
    running = [raw_request(server, True) for _ in range(8)]
    wait_for(server, lambda stats: stats.running == 8)
    connection = raw_request(server, stream)
    wait_for(server, lambda stats: stats.waiting == 1)
    connection.close()
    wait_for(server, lambda stats: stats.waiting == 0)
    assert server.engine.stats().running == 8
    for other in running:
        other.close()
    server.wait_until_idle()


def test_one_of_several_answers_does_not_stay(serve):
    server = serve(FakeExecutor(latency=0.01, context=100_000, n_pages=12_500))
    body = {"model": MODEL, "prompt": ["a", "b"], "n": 2, "max_tokens": 90_000, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as answer:
        next(answer.iter_bytes())
        wait_for(server, lambda stats: stats.running == 4)  # one may be ahead of three
    server.wait_until_idle(1.0)


def test_one_prompt_of_many_that_is_refused_stops_all(serve):
    server = serve(FakeExecutor(latency=0.01, context=10_000, n_pages=1250))
    response = server.complete(["a", "b", "x" * 10_000], max_tokens=9000, ignore_eos=True)
    assert response.json()["error"]["code"] == "context_length_exceeded"
    server.wait_until_idle(1.0)


def test_half_a_request_does_not_block_others(serve):
    server = serve(FakeExecutor())
    name, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((name, int(port))) as half:
        half.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n"
        )
        assert server.chat(max_tokens=1).status_code == 200
    assert server.chat(max_tokens=1).status_code == 200


def test_a_long_prompt_does_not_block_others(serve):
    """Tokenising runs in a thread: /health answers meanwhile."""
    entered, leave = threading.Event(), threading.Event()

    class Slow(TextTokenizer):
        def encode_chat(self, messages, **kwargs):
            entered.set()
            assert leave.wait(10)
            return super().encode_chat(messages, **kwargs)

    server = serve(FakeExecutor(), Slow())
    results = []
    asking = threading.Thread(target=lambda: results.append(server.chat(max_tokens=1)))
    asking.start()
    try:
        assert entered.wait(5)
        assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
        assert not results
    finally:
        leave.set()
        asking.join()
    assert results[0].status_code == 200
