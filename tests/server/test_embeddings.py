"""/v1/embeddings through the official client, and the engine's part of it."""

from __future__ import annotations

import threading
import time

import numpy as np
import openai
import pytest

from kt.engine.batch import Batch
from tests.fakes import BOS, FakeExecutor
from tests.server.harness import MODEL, running


@pytest.fixture(scope="module")
def server():
    with running(FakeExecutor(context=256, n_pages=32, max_batch_tokens=48)) as server:
        yield server
        server.wait_until_idle()


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def states(ids: list[int]) -> np.ndarray:
    """The fake's final hidden states of one prompt, computed at once."""
    executor = FakeExecutor(context=256, n_pages=32, max_batch_tokens=256)
    pages = -(-len(ids) // executor.page_tokens)
    return executor.embed(
        Batch(
            tokens=np.array(ids, np.int32),
            seq_start=np.array([0, len(ids)], np.int32),
            first_position=np.zeros(1, np.int32),
            page_table=np.arange(pages, dtype=np.int32).reshape(1, -1),
            logit_rows=np.zeros(0, np.int32),
        )
    )


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_the_mean_of_all_positions(client):
    # The second is longer than a step, so it is computed in several.
    texts = ["hello", "a long text " * 12]
    answer = client.embeddings.create(model=MODEL, input=texts)
    prompts = [[BOS, *text.encode()] for text in texts]
    for item, ids in zip(answer.data, prompts, strict=True):
        np.testing.assert_allclose(item.embedding, unit(states(ids).mean(axis=0)), atol=1e-6)
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.total_tokens == sum(map(len, prompts))


def test_the_last_position_as_it_is(client):
    ids = list(range(1, 100))
    extra = {"pooling": "last", "normalize": False}
    answer = client.embeddings.create(
        model=MODEL, input=ids, encoding_format="float", extra_body=extra
    )
    np.testing.assert_allclose(answer.data[0].embedding, states(ids)[-1], atol=1e-6)


def test_answers_go_on_meanwhile(server, client):
    alone = server.chat("x", max_tokens=40, temperature=0).json()["choices"][0]["message"]
    texts = []
    chat = threading.Thread(
        target=lambda: texts.append(server.chat("x", max_tokens=40, temperature=0).json())
    )
    chat.start()
    answer = client.embeddings.create(model=MODEL, input=["some text " * 9] * 8)
    chat.join()
    assert texts[0]["choices"][0]["message"] == alone
    assert len({tuple(item.embedding) for item in answer.data}) == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": "x" * 300}, "input", "context_length_exceeded"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [999]}, "input", "invalid_value"),
        ({"input": [[]]}, "input[0]", "invalid_value"),
        ({"dimensions": 4}, "dimensions", "unsupported_parameter"),
        ({"pooling": "max"}, "pooling", "invalid_value"),
        ({"model": "other"}, "model", "model_not_found"),
    ],
    ids=str,
)
def test_what_is_refused(server, fields, param, code):
    body = {"model": MODEL, "input": "x", **fields}
    response = server.http.post("/v1/embeddings", json=body)
    error = response.json()["error"]
    assert response.status_code in (400, 404)
    assert (error["param"], error["code"]) == (param, code)


def test_a_failing_step_ends_its_prompt_only(serve):
    def fail(batch):
        if 33 in batch.tokens:
            raise RuntimeError("broken")

    server = serve(FakeExecutor(fail=fail))
    bad = server.http.post("/v1/embeddings", json={"model": MODEL, "input": ["a", "!"]})
    assert bad.status_code == 500
    good = server.http.post("/v1/embeddings", json={"model": MODEL, "input": ["a"]})
    assert good.status_code == 200
    server.wait_until_idle()


def test_waiting_embeddings_end_with_the_engine(serve):
    server = serve(FakeExecutor(latency=0.05, max_batch_tokens=16))
    futures = [server.engine.embed(list(range(1, 200)), "mean") for _ in range(4)]
    time.sleep(0.1)
    server.engine.close(0.0)
    assert all(future.exception(5) is not None for future in futures)
