"""The engine over pages of either KV format: what is found, shared, given up and computed again
changes no answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kt.engine.engine import Engine
from kt.engine.request import Request, Sampling
from kt.placement.budget import KV_FORMATS, KvFormat
from tests.executors import NATIVE, executor
from tests.fakes import FakeTokenizer
from tests.tiny import tiny_qwen3_moe

SHARED = 100  # tokens at the start of every prompt: three pages and a bit


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3_moe(tmp_path_factory.mktemp("kv") / "m", seed=9)


def requests() -> list[Request]:
    rng = np.random.default_rng(5)
    start = rng.integers(0, 256, SHARED).tolist()
    prompts = [start + rng.integers(0, 256, 10 + 25 * i).tolist() for i in range(4)]
    sampling = Sampling(max_tokens=60, temperature=0.0, ignore_eos=True)
    return [Request(prompt, sampling) for prompt in prompts]


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_prefix_cache_and_preemption_change_no_answer(path: Path, kv_format: KvFormat) -> None:
    answers = []
    for pages, together in ((64, 1), (11, 4)):  # alone; and with pages for two of the four
        made = executor(path, NATIVE[0], pages=pages, tokens=200, kv_format=kv_format)
        engine = Engine(made, FakeTokenizer(), model_name="m", max_batch=together)
        handles = [engine.submit(request) for request in requests()] if together > 1 else []
        with engine:
            if together == 1:
                results = [engine.submit(request).result() for request in requests()]
            else:
                results = [handle.result() for handle in handles]
        stats = engine.stats()
        assert stats.cached_tokens > 0 and stats.pages_free == stats.pages_total
        assert (stats.preemptions > 0) == (together > 1)
        answers.append([[token.id for token in result.tokens] for result in results])
        made.close()
    assert answers[0] == answers[1]
    assert [len(answer) for answer in answers[0]] == [60] * 4
