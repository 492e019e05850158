"""Consumers in an event loop are woken once a step, whatever their number."""

from __future__ import annotations

import asyncio

from kt.engine.doorbell import Doorbell
from kt.engine.request import Delta, Request, Sampling
from tests.engine.driving import SMALL, expected_ids, make_engine
from tests.fakes import FakeExecutor


def test_one_wake_a_step() -> None:
    executor = FakeExecutor(**SMALL, latency=0.005)
    sampling = Sampling(max_tokens=20, temperature=0.0, seed=1, ignore_eos=True)
    requests = [Request([1 + i, 2], sampling) for i in range(8)]
    wakes = 0

    async def consume(engine, request: Request) -> list[int]:
        found = []
        async for event in engine.submit(request):
            if isinstance(event, Delta):
                found += [token.id for token in event.tokens]
        return found

    async def all_of_them(engine) -> list[list[int]]:
        nonlocal wakes
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(*args, **kwargs):
            nonlocal wakes
            wakes += 1
            return wake(*args, **kwargs)

        loop.call_soon_threadsafe = counted
        return await asyncio.gather(*(consume(engine, request) for request in requests))

    with make_engine(executor, max_batch=8) as engine:
        answers = asyncio.run(all_of_them(engine))
    assert answers == [expected_ids(request) for request in requests]
    assert 0 < wakes <= len(executor.batches)


def test_a_loop_that_is_gone_is_let_go() -> None:
    gone, here = asyncio.new_event_loop(), asyncio.new_event_loop()
    lost, waiter, cancelled = gone.create_future(), here.create_future(), here.create_future()
    gone.close()
    cancelled.cancel()
    bell = Doorbell()
    bell.note(gone, lost)
    bell.note(here, cancelled)
    bell.note(here, waiter)
    bell.ring()
    here.run_until_complete(asyncio.wait_for(waiter, 5))
    here.close()
    bell.ring()  # nothing is due any more
