"""Ways to run the engine on the fake executor, and the answers that must come out."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from kt.engine.batch import Batch, SampleParams
from kt.engine.engine import Engine
from kt.engine.request import Request, Result, Sampling
from tests.fakes import END, FakeExecutor, FakeTokenizer
from tests.sampling_oracle import draw

SMALL = {"context": 256, "page_tokens": 8, "n_pages": 512, "max_batch_tokens": 600}


def make_engine(executor: FakeExecutor | None = None, **options: Any) -> Engine:
    options.setdefault("model_name", "fake")
    return Engine(executor or FakeExecutor(**SMALL), FakeTokenizer(), **options)


def answers(engine: Engine, requests: list[Request]) -> list[Result]:
    """All at once; the engine is started and closed."""
    handles = [engine.submit(request) for request in requests]
    with engine:
        return [handle.result() for handle in handles]


def ids(result: Result) -> list[int]:
    return [token.id for token in result.tokens]


def expected_ids(request: Request, context: int = 256) -> list[int]:
    """The answer without engine, batches or cache: every token recomputes the whole history.

    An end token is left out, as in what the engine sends.
    """
    executor = FakeExecutor(
        context=context, max_batch_tokens=context, page_tokens=1, n_pages=context
    )
    sampling = request.sampling
    history = list(request.prompt_ids)
    room = min(sampling.max_tokens or context, context - len(history))
    for position in range(room):
        params = engine_params(request, position, history)
        token = draw(whole(executor, history), params)
        history.append(token)
        if token == END and not sampling.ignore_eos:
            history.pop()
            break
    return history[len(request.prompt_ids) :]


def whole(executor: FakeExecutor, history: list[int]) -> np.ndarray:
    n = len(history)
    batch = Batch(
        tokens=np.array(history, np.int32),
        seq_start=np.array([0, n], np.int32),
        first_position=np.zeros(1, np.int32),
        page_table=np.arange(n, dtype=np.int32).reshape(1, n),
        logit_rows=np.array([n - 1], np.int32),
    )
    return executor.forward(batch)[0]


def engine_params(request: Request, position: int, history: list[int]) -> SampleParams:
    s = request.sampling
    assert s.seed is not None
    banned = ((END, -np.inf),) if position < s.min_tokens else ()
    return SampleParams(
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        min_p=s.min_p,
        repetition_penalty=s.repetition_penalty,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        n_logprobs=-1,
        seed=s.seed,
        position=position,
        n_prompt=len(request.prompt_ids),
        history=np.array(history, np.int32),
        bias=(*s.logit_bias.items(), *banned),
    )


def random_request(rng: random.Random, longest: int = 120) -> Request:
    """A prompt from a small alphabet, so that prompts share prefixes, and varied sampling."""
    prompt = [rng.choice((7, 9)) for _ in range(rng.randint(1, longest))]
    if rng.random() < 0.5:
        prompt = [7] * len(prompt)
    return Request(
        prompt,
        Sampling(
            max_tokens=rng.randint(1, 40),
            temperature=rng.choice([0.0, 0.0, 0.7, 1.5]),
            top_k=rng.choice([0, 20]),
            top_p=rng.choice([1.0, 0.8]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            seed=rng.randrange(1 << 32),
            ignore_eos=rng.random() < 0.3,
            min_tokens=rng.choice([0, 5]),
            logit_bias=rng.choice([{}, {END: 3.0}]),
        ),
    )


def assert_all_free(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.pages_free == stats.pages_total
