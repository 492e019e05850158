"""tiny from the command line: without a network, without torch, and fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.installed import KT, environment

# Runs kt, and then tells what was imported. Nothing but this machine may be reached.
WATCHED = """
import json, os, sys

def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        raise OSError(f"no network: {arguments[0]}")
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        raise OSError(f"no network: {arguments[1]}")

sys.addaudithook(watch)
from kt.cli import app
status = app.main()
heavy = {"torch", "transformers", "huggingface_hub", "fastapi", "uvicorn"} & sys.modules.keys()
os.write(2, json.dumps({"status": status, "heavy": sorted(heavy)}).encode())
"""
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def kt(tmp_path: Path, *args: str) -> tuple[str, dict[str, object], str]:
    """stdout, what WATCHED told, and the rest of stderr."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *args],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(HOME=str(tmp_path), KT_HOME=str(tmp_path), HF_HOME=str(tmp_path)),
        timeout=60,
    )
    notes, brace, told = done.stderr.rpartition("{")
    return done.stdout, json.loads(brace + told), notes


def test_chat_needs_no_server_no_network_and_no_torch(tmp_path: Path) -> None:
    out, told, notes = kt(tmp_path, "chat", "--model", "tiny", "--temperature", "0", QUESTION)
    assert (out, notes) == (ANSWER + "\n", "")
    assert told == {"status": 0, "heavy": []}


def test_run_needs_no_network_and_no_torch(tmp_path: Path) -> None:
    out, told, notes = kt(tmp_path, "run", "tiny", "--prompt", QUESTION)
    assert out == ANSWER + "\n"
    assert told == {"status": 0, "heavy": []}
    assert "Plan for tiny" in notes


def test_the_makefile_asks_what_it_can_answer() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert f"PROMPT ?= {QUESTION}\n" in makefile
    assert 'kt run tiny --prompt "$(PROMPT)"' in makefile


def test_a_running_server_is_asked_first(tmp_path: Path) -> None:
    env = environment(HOME=str(tmp_path), KT_HOME=str(tmp_path))
    command = [*KT, "run", "tiny", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1].removesuffix("/v1")
            ask = [*KT, "chat", "--json", "--temperature", "0", "--model", "tiny", QUESTION]
            done = subprocess.run(
                ask, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, timeout=60
            )
            answer = json.loads(done.stdout)
            assert (answer["model"], answer["answer"]) == ("tiny", ANSWER)
            assert httpx.get(f"{url}/health").json()["stats"]["requests"] == 1
        finally:
            server.terminate()


LOAD = """
from kt import catalog
from kt.chat.local import Local
entry = catalog.resolve("tiny")
Local.start(entry.name, entry.path).close()
"""


def test_loading_takes_less_time_than_importing_torch() -> None:
    """Processor time of whole processes, which other work on the machine disturbs least."""
    pytest.importorskip("torch")
    best = {LOAD: float("inf"), "import torch": float("inf")}
    for _ in range(3):
        for code in best:
            best[code] = min(best[code], _seconds(code))
    assert best[LOAD] < best["import torch"]


def _seconds(code: str) -> float:
    process = subprocess.Popen([sys.executable, "-c", code], env=environment())
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime
