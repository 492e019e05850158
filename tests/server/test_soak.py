"""200 clients at once over the real weights, for --soak-seconds: no error, no lost page, flat
memory, and every answer is the one that the server gives when it has nothing else to do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from kt.units import MIB
from tests import installed
from tests.executors import SMOLLM2
from tests.server.soak_clients import SCHEMA, Clients, Told, bodies

pytestmark = [pytest.mark.slow, pytest.mark.model]

CLIENTS = 200
GROWTH = 16 * MIB
"""Of the server's memory in the second half of the time: a few kilobytes for every request."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The URL and the process of a `kt run` with fewer places and pages than the clients want."""
    environment = installed.environment(KT_HOME=str(tmp_path), PYTHONUNBUFFERED="1")
    options = ("--port", "0", "--context", "512", "--max-batch", "8")
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [*installed.KT, "run", str(SMOLLM2), *options],
        env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        ready = re.match(r"Ready: (\S+)/v1", process.stdout.readline())
        assert ready, (tmp_path / "log").read_text()
        yield ready[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
        log.close()


def test_many_clients_for_a_while(
    server: tuple[str, psutil.Process],
    pytestconfig: pytest.Config,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "httpx")  # it has a line for every request
    url, process = server
    seconds: float = pytestconfig.getoption("--soak-seconds")
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    free = stats(url)["pages_free"]

    async def soak() -> tuple[Clients, int]:
        async with Clients(url, bodies(model)) as clients:
            await clients.learn()
            await clients.busy(CLIENTS, seconds / 2)
            settled = await asyncio.to_thread(resident, url, process)
            await clients.busy(CLIENTS, seconds / 2)
        return clients, settled

    clients, settled = asyncio.run(soak())
    grown = resident(url, process) - settled
    end = stats(url)
    memory = f"memory {settled / MIB:.0f} {grown / MIB:+.1f} MiB"
    logging.getLogger(__name__).info("%s, %s, %s", dict(clients.counts), memory, end)
    for told in clients.expected:
        check(told)
    assert clients.faults == []
    assert min(clients.counts.values()) > 0 and len(clients.counts) == 4
    assert end["failures"] == 0
    assert end["pages_free"] == free == end["pages_total"]
    assert grown <= GROWTH


def check(told: Told) -> None:
    """That the answers which the others were compared with have their form."""
    for name, arguments in told.calls:
        assert name == "describe" and told.reason == "tool_calls"
        assert set(json.loads(arguments)) == set(SCHEMA["required"])
    assert told.calls or told.text


def stats(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/health", timeout=60).json()["stats"]
    return found


def resident(url: str, process: psutil.Process) -> int:
    """The server's memory in bytes once it has nothing to do."""
    end = time.monotonic() + 30
    while (now := stats(url))["running"] or now["waiting"]:
        assert time.monotonic() < end, now
        time.sleep(0.05)
    return int(process.memory_info().rss)
