"""The process: ports, addresses, signals and the state file, with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from kt.errors import UsageError
from kt.server import serve as serving
from kt.server import state
from tests.fakes import FakeExecutor
from tests.installed import ROOT, environment
from tests.server.harness import MODEL, events

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Process:
    """A server process; url is known when it is ready."""

    def __init__(self, home: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tests.server.fake_server", str(home), *options]
        env = environment(ROOT)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT
        )
        self.url = self.process.stdout.readline().strip()

    def end(self, timeout: float = 12) -> tuple[int, str, str]:
        """(exit status, the rest of stdout, stderr)."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def launch(*options: str) -> Process:
        started.append(Process(tmp_path, *options))
        return started[-1]

    yield launch
    for process in started:
        process.process.kill()
        process.end()


class Stream(threading.Thread):
    """Reads a stream in the background; `begun` is set at its first bytes."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.begun = threading.Event()
        self.text = ""
        self.error: Exception | None = None
        self.start()
        assert self.begun.wait(10)

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=BODY) as response:
                for text in response.iter_text():
                    self.text += text
                    self.begun.set()
        except httpx.HTTPError as error:
            self.error = error

    def events(self) -> list:
        self.join(15)
        assert not self.is_alive()
        assert self.error is None
        return events(self.text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_an_idle_server_in_order(start, tmp_path, number):
    server = start()
    found = state.read(tmp_path)
    assert (found.url, found.pid, found.model) == (server.url, server.process.pid, MODEL)
    assert abs(found.started - time.time()) < 60
    server.process.send_signal(number)
    assert server.end(3) == (0, "closed\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_stream_may_finish_after_the_signal(start):
    # 100 tokens of 10 ms.
    server = start("--latency", "0.01", "--reply", "y" * 100)
    stream = Stream(server.url)
    server.process.send_signal(signal.SIGTERM)
    *chunks, done = stream.events()
    assert done == "[DONE]"
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert text == "y" * 100
    assert server.end(5)[:2] == (0, "closed\n")


@pytest.mark.parametrize(
    "grace", [1.5, pytest.param(serving.GRACE_SECONDS, marks=pytest.mark.slow, id="own")]
)
def test_a_stream_that_goes_on_is_told_within_ten_seconds(start, grace):
    """It takes the time of grace and at most LAST_SECONDS more; kt's own grace is 7 s."""
    server = start("--latency", "0.01", "--stay", "--grace", str(grace))
    stream = Stream(server.url)
    start_time = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.end(10)[:2] == (0, "closed\n")
    assert grace < time.monotonic() - start_time < grace + serving.LAST_SECONDS
    last = stream.events()[-1]
    assert last["error"]["message"] == "the server is shutting down"
    assert last["error"]["type"] == "server_error"


def test_a_second_ctrl_c_ends_at_once(start):
    server = start("--latency", "0.01", "--stay")
    stream = Stream(server.url)
    start_time = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    status, _, err = server.end(3)
    assert status == 0 and "Traceback" not in err
    assert time.monotonic() - start_time < 3
    stream.join(5)
    assert stream.events()[-1]["error"]["message"] == "the server is shutting down"


def test_a_second_ctrl_c_does_not_wait_for_a_step(start):
    server = start("--latency", "30")
    stream = Stream(server.url)
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    start_time = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    stream.join(3)
    assert not stream.is_alive() and time.monotonic() - start_time < 3
    server.process.kill()  # its engine still waits for the step
    assert "Traceback" not in server.end()[2]


def test_kill_leaves_no_confusion(start, tmp_path):
    killed = start()
    killed.process.kill()
    killed.end()
    assert len(list(tmp_path.iterdir())) == 1
    assert state.read(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    # The port is free at once.
    again = start("--port", killed.url.rpartition(":")[2])
    assert again.url == killed.url
    assert state.read(tmp_path).pid == again.process.pid


def test_two_servers_do_not_hide_each_other(start, tmp_path):
    older, newer = start(), start()
    assert [found.url for found in state.living(tmp_path)] == [newer.url, older.url]
    newer.process.terminate()
    newer.end(5)
    assert [found.url for found in state.living(tmp_path)] == [older.url]
    older.process.terminate()
    older.end(5)
    assert list(tmp_path.iterdir()) == []


def test_nohup_outlives_its_terminal(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = Process(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    server.process.send_signal(signal.SIGHUP)
    assert httpx.get(f"{server.url}/health").status_code == 200
    server.process.terminate()
    assert server.end(5)[:2] == (0, "closed\n")


def test_a_home_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").touch()
    server = Process(tmp_path / "file")
    try:
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.process.terminate()
        status, out, err = server.end()
        assert (status, out) == (0, "closed\n")
        assert f"kt chat will need --url {server.url}" in err
    finally:
        server.process.kill()


def test_a_taken_port_is_said_before_anything_is_loaded(start):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, out, err = start("--port", str(port)).end()
        assert (status, out) == (2, "")
        assert err.startswith(f"port {port} on 127.0.0.1 is already in use\n")
        assert "--port" in err
        with pytest.raises(UsageError, match="already in use"):
            serving.check_port("127.0.0.1", port)
    serving.check_port("127.0.0.1", port)


def test_a_reserved_port_is_taken():
    with serving.reserve("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1"):
            serving.reserve("127.0.0.1", port)


def test_small_answers_are_sent_at_once(random_server):
    """Nagle's algorithm and delayed acknowledgements together would add 40 ms to each."""

    def seconds() -> float:
        start = time.perf_counter()
        assert random_server.complete("x", max_tokens=1).status_code == 200
        return time.perf_counter() - start

    assert min(seconds() for _ in range(20)) < 0.03


def test_a_server_that_ends_takes_no_requests(serve):
    server = serve(FakeExecutor())
    server.generations.close("bye")
    response = server.chat()
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "bye"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_key(host):
    with pytest.raises(UsageError) as refused:
        serving.reserve(host, 0)
    assert "--api-key" in refused.value.hint


def test_an_empty_address_is_none():
    with pytest.raises(UsageError, match="--host is empty"):
        serving.reserve(" ", 0, api_keys=["k"])


@pytest.mark.parametrize("keys", [[""], ["k", " "]])
def test_an_empty_key_is_none(keys):
    with pytest.raises(UsageError, match="key is empty"):
        serving.reserve("127.0.0.1", 0, api_keys=keys)


def test_with_a_key_any_address_is_served(start):
    server = start("--host", "0.0.0.0", "--key", "k")
    assert server.url.startswith("http://127.0.0.1:")
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/v1/models", headers={"authorization": "Bearer k"}).is_success


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_loopback_addresses_need_none(host):
    assert serving.is_loopback(host)


def test_an_address_of_another_machine():
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        serving.reserve("192.0.2.1", 0, api_keys=["k"])
    with pytest.raises(UsageError, match="cannot listen on no such host"):
        serving.reserve("no such host", 0, api_keys=["k"])


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none(port):
    with pytest.raises(UsageError, match="is not a port"):
        serving.reserve("127.0.0.1", port)


def live_state(pid: int, port: int) -> state.ServerState:
    return state.ServerState(f"http://127.0.0.1:{port}", pid, "m", 1.5, ("m", "/a/m.gguf"))


def test_the_state_file(tmp_path):
    home = tmp_path / "a" / "b"
    with serving.reserve("127.0.0.1", 0) as listener:
        written = live_state(os.getpid(), listener.getsockname()[1])
        path = state.write(home, written)
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(home.iterdir()) == [path]
        assert set(json.loads(path.read_text())) == {
            "url",
            "pid",
            "model",
            "started",
            "names",
        }
        assert state.read(home) == written
        # Another server's file is not ours to remove.
        state.remove(home, os.getpid() + 1)
        assert state.read(home) == written
        state.remove(home, os.getpid())
        assert state.read(home) is None


def test_a_state_file_whose_port_refuses_is_removed(tmp_path):
    with serving.reserve("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    path = state.write(tmp_path, live_state(os.getpid(), port))
    assert state.read(tmp_path) is None
    assert not path.exists()


def test_a_state_file_of_a_dead_process_is_removed(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    # Something else listens where the dead server did.
    with serving.reserve("127.0.0.1", 0) as listener:
        path = state.write(tmp_path, live_state(dead.pid, listener.getsockname()[1]))
        assert state.read(tmp_path) is None
        assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"url": "x"}',
        '{"url": "ftp://a:1", "pid": 1, "model": "", "started": 0}',
        "\ufffd\x00",
        "[" * 60_000,
        '{"url": "http://127.0.0.1:1", "pid": 1e999, "model": "x", "started": 1}',
        '{"url": "http://127.0.0.1:1", "pid": -1, "model": "x", "started": 1}',
        '{"url": "http://127.0.0.1:1", "pid": 0, "model": "x", "started": 1}',
        '{"url": "http://127.0.0.1:1", "pid": 99999999999999, "model": "x", "started": 1}',
        '{"url": "http://127.0.0.1:1", "pid": 1, "model": "x", "started": ' + "9" * 400 + "}",
        '{"url": "u", "pid": ' + "9" * 5000 + "}",
        '{"url": "http://' + "a" * 70 + '.b:80", "pid": 1, "model": "x", "started": 1}',
        '{"url": "http://a\\u0000b:80", "pid": 1, "model": "x", "started": 1}',
        '{"url": "http://\\ud800:80", "pid": 1, "model": "x", "started": 1}',
        '{"url": "http://[::1:80", "pid": 1, "model": "x", "started": 1}',
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_state_file_is_removed(tmp_path, text):
    path = tmp_path / "server-12.json"
    path.write_text(text)
    assert state.read(tmp_path) is None
    assert not path.exists()


def test_bytes_that_are_no_text_are_no_state(tmp_path):
    path = tmp_path / "server-12.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert state.read(tmp_path) is None
    assert not path.exists()


def test_what_is_no_file_is_no_state_and_stays(tmp_path):
    os.mkfifo(tmp_path / "server-12.json")
    (tmp_path / "server-13.json").mkdir()
    assert state.read(tmp_path) is None
    assert len(list(tmp_path.iterdir())) == 2
    assert state.read(tmp_path / ("x" * 5000)) is None
