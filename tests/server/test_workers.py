"""Threads for long work: few, and nobody waits for them at the end."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from kt.server.workers import Workers
from kt.text.pieces import TextTooLong
from tests.fakes import FakeExecutor
from tests.server.harness import Running, TextTokenizer, running


def test_results_and_errors_come_back():
    async def main():
        workers = Workers(2)
        assert await asyncio.gather(*(workers.run(lambda n=n: n * n) for n in range(20))) == [
            n * n for n in range(20)
        ]
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0)

    asyncio.run(main())


def test_no_more_than_so_many_run_at_once():
    lock, now, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1

    async def main():
        workers = Workers(2)
        await asyncio.gather(*(workers.run(work) for _ in range(12)))

    asyncio.run(main())
    assert most[0] == 2


def test_what_nobody_waits_for_is_not_begun():
    begun = []

    async def main():
        workers = Workers(1)
        first = asyncio.create_task(workers.run(lambda: time.sleep(0.2)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(workers.run(lambda: begun.append(1)))
        await asyncio.sleep(0.05)
        second.cancel()
        await first
        assert await workers.run(lambda: 5) == 5

    asyncio.run(main())
    assert begun == []


def test_a_process_ends_beside_unfinished_work():
    code = """
import asyncio, time
from kt.server.workers import Workers
async def main():
    task = asyncio.create_task(Workers().run(lambda: time.sleep(60)))
    await asyncio.sleep(0.2)
    task.cancel()
asyncio.run(main())
"""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    assert time.monotonic() - started < 15


class Long(TextTokenizer):
    """Counts a text only as far as it must."""

    def encode(self, text, *, limit=None, **kwargs):
        ids = super().encode(text, **kwargs)
        if limit is not None and len(ids) > limit:
            raise TextTooLong(limit + 1, limit)
        return ids

    def encode_chat(self, messages, *, limit=None, **kwargs):
        return self.encode(str(messages), limit=limit)


def test_too_long_texts_are_told_by_their_code():
    with running(FakeExecutor(context=64), Long()) as server:
        assert isinstance(server, Running)
        for response in (server.chat("a" * 500), server.complete("a" * 500)):
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "65 tokens or more, but the context holds 64" in error["message"]
