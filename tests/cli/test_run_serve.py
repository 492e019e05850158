"""`kt run` as a user starts it: ready, asked, interrupted, and nothing left behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import installed
from tests.hub import Hub, Repo
from tests.tiny import tiny_gguf, tiny_qwen3_moe


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    home = {"KT_HOME": str(tmp_path / "kt"), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return installed.environment(**home)


def command(*arguments: str) -> list[str]:
    return [*installed.KT, *arguments]


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A `kt run` that is ready; .url is where."""
    model = tiny_gguf(tmp_path / "tiny.Q4_0.gguf")
    process = subprocess.Popen(
        command("run", str(model), "--port", "0", "--context", "128", "--max-batch", "2"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("w"),
        text=True,
    )
    assert process.stdout
    line = process.stdout.readline()
    found = re.match(r"Ready: (http://127\.0\.0\.1:\d+)/v1", line)
    if not found:
        process.kill()
        process.wait()
        pytest.fail(f"not ready: {line!r}\n{(tmp_path / 'log').read_text()}")
    process.url = found[1]  # type: ignore[attr-defined]
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()
    process.stdout.close()


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_a_server_from_start_to_end(
    server: subprocess.Popen[str], environment: dict[str, str], tmp_path: Path
) -> None:
    url: str = server.url  # type: ignore[attr-defined]
    assert get(f"{url}/v1/models")["data"][0]["id"] == "tiny.Q4_0"
    health = get(f"{url}/health")
    plan = health["plan"]
    assert plan["context"] == {"value": 128, "reason": "asked for"}
    assert plan["variant"]["value"] and plan["variant"]["reason"]
    body = {"model": "tiny.Q4_0", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = get(f"{url}/v1/chat/completions", body)
    assert 1 <= answer["usage"]["completion_tokens"] <= 4
    (file,) = (tmp_path / "kt").glob("server-*.json")
    state = json.loads(file.read_text())
    assert (state["url"], state["pid"]) == (url, server.pid)
    chat = subprocess.run(
        command("chat", "hello there"), env=environment, capture_output=True, text=True, timeout=60
    )
    assert chat.returncode == 0, chat.stderr
    log = (tmp_path / "log").read_text()
    assert log.index("Machine") < log.index("Plan for tiny.Q4_0") < log.index("Memory")
    assert plan["variant"]["reason"] in log
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0
    assert not list((tmp_path / "kt").glob("server-*.json"))
    log = (tmp_path / "log").read_text()
    assert log.endswith("\nstopped\n") and "Traceback" not in log


def test_a_termination_ends_it_too(server: subprocess.Popen[str], tmp_path: Path) -> None:
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert not list((tmp_path / "kt").glob("server-*.json"))


@pytest.mark.parametrize("kind", ["gguf", "moe"])
def test_one_prompt_without_a_server(
    tmp_path: Path, environment: dict[str, str], kind: str
) -> None:
    model = tiny_qwen3_moe(tmp_path / "m") if kind == "moe" else tiny_gguf(tmp_path / "m.gguf")
    arguments = command("run", str(model), "--prompt", "the quick", "--context", "64")
    runs = [
        subprocess.run(arguments, env=environment, capture_output=True, timeout=60)
        for _ in range(2)
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr
        assert re.search(rb"\d+ prompt tokens, \d+ tokens answered", done.stderr)
    assert runs[0].stdout == runs[1].stdout != b"\n"
    assert not (tmp_path / "kt").exists()


def test_a_model_from_the_hub(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tiny_gguf(tmp_path / "tiny.Q4_0.gguf").read_bytes()
    arguments = command("run", "owner/tiny:Q4_0", "--prompt", "the quick", "--context", "64")
    cache = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    with Hub({"owner/tiny": Repo({"tiny.Q4_0.gguf": file}, cuts=[len(file) * 4 // 10])}) as hub:
        env = {**environment, **cache, "HF_ENDPOINT": hub.url}
        done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sum(hub.sent("tiny.Q4_0.gguf")) == len(file)
    assert "Downloading owner/tiny: " in done.stderr
    again = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    assert "cannot reach the hub" in again.stderr and "running what is in the cache" in again.stderr
    assert again.stdout == done.stdout


def test_a_dry_run_of_what_is_on_the_hub(tmp_path: Path, environment: dict[str, str]) -> None:
    """Of an index and three files, of which it names two; nothing of them is kept."""
    parts = {f"model-0000{i}-of-00002.safetensors": bytes(2000 + i) for i in (1, 2)}
    named = {"weight_map": {str(i): name for i, name in enumerate(parts)}}
    small = {"model.safetensors.index.json": json.dumps(named).encode(), "config.json": b"{}"}
    others = {"consolidated.safetensors": bytes(9000), "README.md": b"read me"}
    cache = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}

    def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("run", "owner/big", "--dry-run", *arguments),
            env={**environment, **cache, "HF_ENDPOINT": hub.url},
            capture_output=True,
            text=True,
            timeout=60,
        )

    with Hub({"owner/big": Repo({**parts, **small, **others})}) as hub:
        told, shown = dry_run("--json"), dry_run()
        assert hub.sent("consolidated.safetensors") == hub.sent("README.md") == []
        assert not any(sum(hub.sent(name)) for name in parts)
    assert (told.returncode, shown.returncode) == (0, 0), shown.stderr
    document = json.loads(told.stdout)
    assert document["fits"] is None
    sizes = {name: len(data) for name, data in {**parts, **small}.items()}
    assert document["download"]["files"] == sizes
    assert document["download"]["weight_bytes"] == 4003
    assert document["download"]["missing_bytes"] == sum(sizes.values())
    assert "2 of weights, 3.9 KiB" in shown.stdout and "2 others" in shown.stdout
    assert "without --dry-run they are downloaded" in shown.stderr
    assert not (tmp_path / "hub").exists()
    hub_gone = dry_run()
    assert hub_gone.returncode == 6 and "cannot reach the hub" in hub_gone.stderr


def test_an_interrupt_while_loading_is_quiet(tmp_path: Path, environment: dict[str, str]) -> None:
    code = (
        "import os, signal, time\nimport kt.engine.launch as launch\n"
        "launch.launch = lambda *a, **k: (os.kill(os.getpid(), signal.SIGINT), time.sleep(60))\n"
        "from kt.__main__ import main\nmain()"
    )
    model = tiny_gguf(tmp_path / "m.gguf")
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(model), "--port", "0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 130
    assert done.stderr.endswith("interrupted\n")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "kt").exists()
