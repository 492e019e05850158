"""The engine on the real weights: scored prompts and constrained answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from kt.engine.engine import Engine
from kt.engine.request import Grammar, Request, Sampling
from kt.tokenizer import Tokenizer
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE, SMOLLM2, all_logits, executor
from tests.sampling_oracle import log_softmax

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "people": {"type": "integer", "minimum": 0},
        "size": {"enum": ["small", "large"]},
    },
    "required": ["city", "country", "people", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(open_checkpoint(SMOLLM2))


@pytest.fixture(scope="module")
def made() -> Iterator[object]:
    made = executor(SMOLLM2, NATIVE[0], pages=128)
    yield made
    made.close()


def test_prompt_scores_are_those_of_one_pass(made, tokenizer) -> None:
    ids = tokenizer.encode("The capital of France is Paris, and the capital of Italy is Rome.")
    expected = [log_softmax(row) for row in all_logits(made, ids)]
    request = Request(ids, Sampling(max_tokens=0, prompt_logprobs=5))
    made.max_logits = 4  # as many as a small batch leaves: the prompt takes several steps
    with Engine(made, tokenizer, model_name="m", max_batch=2) as engine:
        result = engine.submit(request).result()
    assert "".join(token.text for token in result.prompt) == tokenizer.decode(ids)
    for token, row in zip(result.prompt[1:], expected, strict=False):
        assert token.logprob == pytest.approx(row[token.id], abs=1e-4)
        assert [i for i, _ in token.best] == np.argsort(-row, kind="stable")[:5].tolist()


def test_a_schema_shapes_answers_and_leaves_their_neighbours_alone(made, tokenizer) -> None:
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Describe Paris as JSON."}])
    # White space between tokens is free in JSON, and a small model likes it.
    blank = [i for i, text in enumerate(tokenizer.token_bytes()) if text and not text.strip()]
    bias = dict.fromkeys(blank, -100.0)
    free = Request(prompt, Sampling(max_tokens=24, temperature=0.0))
    bound = [
        Request(
            prompt,
            Sampling(max_tokens=120, temperature=0.8, seed=seed, logit_bias=bias),
            grammar=Grammar("json_schema", json.dumps(SCHEMA)),
        )
        for seed in range(3)
    ]
    with Engine(made, tokenizer, model_name="m", max_batch=4) as engine:
        alone = engine.submit(free).result()
        handles = [engine.submit(request) for request in (free, *bound)]
        beside, *shaped = [handle.result() for handle in handles]
    assert [t.id for t in beside.tokens] == [t.id for t in alone.tokens]
    for result in shaped:
        assert result.finished.reason == "stop", result.text
        value = json.loads(result.text)
        assert set(value) == set(SCHEMA["required"])
        assert value["size"] in ("small", "large") and value["people"] >= 0
