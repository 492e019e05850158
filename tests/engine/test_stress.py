"""64 clients at once over the fake executor: no page is lost, no answer depends on the others."""

from __future__ import annotations

import random
import re
import threading
import time

import pytest

from kt.engine.engine import Engine
from kt.engine.handle import Handle
from kt.engine.request import Finished, Grammar, QueueFull, Request, Result, Sampling
from tests.engine.driving import assert_all_free, expected_ids, ids, make_engine, random_request
from tests.fakes import FakeExecutor

CLIENTS = 64
ROUNDS = 6
PATTERNS = ("[ab]{3,30}", "(x[0-9]+;)+", '"[a-z ]{0,20}"')


class Client(threading.Thread):
    """Sends requests of every kind one after another; keeps what has to be compared."""

    def __init__(self, engine: Engine, seed: int) -> None:
        super().__init__()
        self._engine = engine
        self._rng = random.Random(seed)
        self.whole: list[tuple[Request, Result]] = []
        self.cut: list[tuple[Request, list[int]]] = []
        self.shaped: list[tuple[str, Result]] = []
        self.refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(ROUNDS):
                self._one()
        except BaseException as error:
            self.failure = error

    def _submit(self, request: Request) -> Handle:
        while True:
            try:
                return self._engine.submit(request)
            except QueueFull:
                self.refused += 1
                time.sleep(0.02)

    def _one(self) -> None:
        kind = self._rng.choice(
            ["plain", "plain", "repeat", "cancel", "grammar", "scored", "timeout"]
        )
        request = random_request(self._rng)
        if kind == "grammar":
            pattern = self._rng.choice(PATTERNS)
            sampling = Sampling(max_tokens=60, temperature=self._rng.choice([0.0, 1.0]), seed=5)
            request = Request(request.prompt_ids, sampling, grammar=Grammar("regex", pattern))
        if kind == "repeat":
            bias = {65: 6.0, 66: 6.0}
            sampling = Sampling(max_tokens=60, temperature=0.0, seed=1, logit_bias=bias)
            request = Request(request.prompt_ids, sampling)
        if kind == "scored":
            sampling = Sampling(max_tokens=5, temperature=0.0, seed=1, prompt_logprobs=1)
            request = Request(request.prompt_ids, sampling)
        if kind == "timeout":
            request = Request(request.prompt_ids, request.sampling, timeout=0.2)
        handle = self._submit(request)
        if kind == "cancel":
            got: list[int] = []
            stop_after = self._rng.randint(0, 6)
            for event in handle:
                if isinstance(event, Finished):
                    assert event.reason != "error", event.message
                    break
                got += [token.id for token in event.tokens]
                if len(got) >= stop_after:
                    handle.cancel()
            self.cut.append((request, got))
            return
        result = handle.result()
        assert result.finished.reason != "error", result.finished.message
        if kind == "grammar":
            self.shaped.append((pattern, result))
        elif kind == "timeout":
            self.cut.append((request, ids(result)))
        else:
            self.whole.append((request, result))


@pytest.mark.slow
@pytest.mark.parametrize("speculate", [None, "ngram"])
def test_many_clients_of_every_kind(speculate: str | None) -> None:
    executor = FakeExecutor(
        context=256, page_tokens=8, n_pages=64, max_batch_tokens=200, max_logits=40, latency=0.002
    )
    engine = make_engine(
        executor, max_batch=12, prefill_chunk=50, max_queue=20, speculate=speculate
    )
    before = engine.stats().pages_free
    clients = [Client(engine, seed) for seed in range(CLIENTS)]
    with engine:
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
        stats = engine.stats()
    assert not any(client.is_alive() for client in clients)
    assert [client.failure for client in clients] == [None] * CLIENTS
    assert engine.stats().pages_free == before == 64
    assert_all_free(engine)
    assert (stats.failures, stats.preemptions > 0) == (0, True)
    assert sum(client.refused for client in clients) > 0
    assert (stats.draft_accepted > 0) == (speculate is not None)
    answered = [pair for client in clients for pair in client.whole]
    assert len(answered) > 50
    for request, result in answered:
        assert ids(result) == expected_ids(request)
    for request, got in (pair for client in clients for pair in client.cut):
        assert got == expected_ids(request)[: len(got)]
    for pattern, result in (pair for client in clients for pair in client.shaped):
        if result.finished.reason == "stop":
            assert re.fullmatch(pattern, result.text), (pattern, result.text)
