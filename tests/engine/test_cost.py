"""What the engine costs: nothing when idle, little per token, one large prefill at the start."""

from __future__ import annotations

import time

import numpy as np

from kt.engine.batch import F32, Batch, Sampled, SampleParams
from kt.engine.engine import Engine
from kt.engine.request import Request, Sampling
from kt.engine.stats import Meter
from tests.engine.driving import SMALL, answers, expected_ids, ids, make_engine
from tests.fakes import FakeExecutor, FakeTokenizer

GREEDY = Sampling(max_tokens=8, temperature=0.0, seed=0)


def test_an_idle_engine_uses_no_cpu() -> None:
    engine = make_engine()
    with engine:
        engine.submit(Request([1], GREEDY)).result()
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.02


class Instant:
    """An executor that costs nothing, with a large vocabulary and a large context."""

    vocab, context, max_batch_tokens, page_tokens, n_pages = 49152, 8192, 576, 32, 256
    max_logits = 16

    def __init__(self) -> None:
        self._logits = np.zeros((16, self.vocab), np.float32)
        self.steps = 0

    def forward(self, batch: Batch) -> F32:
        self.steps += 1
        return self._logits[: len(batch.logit_rows)]

    def sample(self, logits: F32, params: list[SampleParams]) -> list[Sampled]:
        return [Sampled(65)] * len(params)

    def close(self) -> None: ...


def test_the_engines_own_work_per_token_is_small() -> None:
    """With 4,000 tokens of history and stop texts: about 0.02 ms; 2 ms would be a defect."""
    executor = Instant()
    engine = Engine(executor, FakeTokenizer(), model_name="instant")
    sampling = Sampling(max_tokens=1000, stop=("never",), frequency_penalty=0.5)
    with engine:
        begun = time.process_time()
        engine.submit(Request([1] * 4000, sampling)).result()
        spent = time.process_time() - begun
    assert executor.steps >= 1000
    assert spent / executor.steps < 0.002


def test_warm_up_runs_the_largest_prefill_and_leaves_nothing() -> None:
    executor = FakeExecutor(**SMALL)
    engine = make_engine(executor)
    engine.warm_up()
    assert executor.batches == [256, 32]  # the context; a batch could hold more
    request = Request([0] * 30, GREEDY)
    [result] = answers(engine, [request])
    assert (result.finished.cached_tokens, ids(result)) == (0, expected_ids(request))


def test_rates_cover_the_last_ten_seconds() -> None:
    now = [100.0]
    meter = Meter(lambda: now[0])
    meter.add(50, 0)
    now[0] = 102.0
    meter.add(10, 4)
    assert meter.rates() == (30.0, 2.0)
    now[0] = 111.5
    assert meter.rates() == (1.0, 0.4)
    now[0] = 200.0
    assert meter.rates() == (0.0, 0.0)
