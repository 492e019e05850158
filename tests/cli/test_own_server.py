"""The server that `kt bench serve` starts ends with it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.installed import PACKAGES, ROOT

STARTS = """
import time
from kt.bench.own_server import started
from kt.__main__ import main
import sys
import kt.cli.app
def measure():
    with started("tiny", []) as url:
        print(url, flush=True)
        time.sleep(60)
kt.cli.app.main = measure
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_with_the_bench(tmp_path: Path, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": f"{PACKAGES}:{ROOT}", "KT_HOME": str(tmp_path)}
    bench = subprocess.Popen(
        [sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True, env=env
    )
    assert bench.stdout is not None and bench.stdout.readline().startswith("http://127.0.0.1:")
    (state,) = tmp_path.glob("server-*.json")
    server = int(state.stem.removeprefix("server-"))
    bench.send_signal(number)
    assert bench.wait(20) == -number
    end = time.monotonic() + 10
    while Path(f"/proc/{server}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{server}").exists()
    assert not state.exists()
