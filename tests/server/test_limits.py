"""Limits, metrics and sampling defaults."""

from __future__ import annotations

import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kt.errors import UsageError
from kt.server.app import create_app
from kt.server.sampling_defaults import SamplingDefaults, from_checkpoint
from tests.fakes import FakeExecutor, replying
from tests.server.harness import INFO, TextTokenizer, events


def metrics(server):
    text = server.http.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(serve):
    server = serve(FakeExecutor(reply=replying("hello"), latency=0.01))
    server.chat("one")
    server.chat("one", stream=True)
    server.chat("two", max_tokens=2)
    seen = metrics(server)
    assert seen["kt_answers_total", "stop"] == 2
    assert seen["kt_answers_total", "length"] == 1
    assert seen["kt_requests_total",] == 3
    assert seen["kt_completion_tokens_total",] == 6 + 6 + 2
    assert seen["kt_prompt_tokens_total",] == 3 * 7  # <bos> <user> o n e <end> <assistant>
    assert seen["kt_time_to_first_token_seconds_count",] == 3
    assert seen["kt_time_to_first_token_seconds_sum",] >= 0.03
    # The end tokens have no text, so nobody sees when they come.
    assert seen["kt_inter_token_seconds_count",] == 4 + 4 + 1
    assert seen["kt_inter_token_seconds_sum",] >= 0.09
    assert seen["kt_queue_seconds_count",] == seen["kt_answer_seconds_count",] == 3
    assert seen["kt_kv_pages",] == 512
    assert (seen["kt_requests_running",], seen["kt_requests_waiting",]) == (0, 0)


def test_cached_tokens_are_told_and_counted(serve):
    server = serve(FakeExecutor(reply=replying("x")))
    usage = [server.chat("a long prompt " * 8).json()["usage"] for _ in range(2)]
    cached = [item["prompt_tokens_details"]["cached_tokens"] for item in usage]
    assert cached[0] == 0
    assert cached[1] >= 96
    assert metrics(server)["kt_cached_tokens_total",] == cached[1]


def test_a_full_queue_is_a_429(serve):
    server = serve(FakeExecutor(reply=lambda _: ord("x"), latency=0.02), max_queue=2)
    threads = [
        threading.Thread(target=lambda: server.chat("x", max_tokens=60)) for _ in range(8 + 2)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    refused = server.chat("one too many")
    assert refused.status_code == 429, refused.text
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    body = {"model": "fake-1b", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    refused = server.http.post("/v1/messages", json=body)
    assert refused.json()["error"]["type"] == "rate_limit_error"
    for thread in threads:
        thread.join()
    assert server.chat("again", max_tokens=1).status_code == 200


def test_an_answer_that_takes_too_long(serve):
    server = serve(FakeExecutor(reply=lambda _: ord("x"), latency=0.02), timeout=0.3)
    response = server.chat()
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"
    *_, last = events(server.chat(stream=True).text)
    assert last["error"]["code"] == "timeout"
    server.wait_until_idle()


def test_cors_is_off_unless_asked_for(serve):
    origin = {"origin": "http://editor.example"}
    asked = {**origin, "access-control-request-method": "POST"}
    closed = serve(FakeExecutor())
    assert "access-control-allow-origin" not in closed.http.get("/health", headers=origin).headers
    opened = serve(FakeExecutor(), cors=["http://editor.example"], api_keys=["key"])
    preflight = opened.http.options("/v1/chat/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "http://editor.example"
    refused = opened.http.get("/v1/models", headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://editor.example"
    other = opened.http.get("/health", headers={"origin": "http://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_cors_for_everybody_needs_a_key():
    with pytest.raises(UsageError, match="every web page"):
        create_app(None, TextTokenizer(), INFO, cors=["*"])


class Checkpoint:
    def __init__(self, folder=None, metadata=None):
        self.folder = folder
        self.gguf_metadata = metadata


def test_the_model_s_own_sampling_is_read(tmp_path):
    (tmp_path / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 5, "do_sample": true}'
    )
    found = from_checkpoint(Checkpoint(tmp_path))
    assert found == SamplingDefaults(
        0.6, 0.95, 20, reason="generation_config.json says so"
    )  # min_p 5 is none
    assert from_checkpoint(Checkpoint(tmp_path / "empty")) == SamplingDefaults()
    gguf = {"general.sampling.temp": 0.7, "general.sampling.top_k": 40}
    assert from_checkpoint(Checkpoint(metadata=gguf)).temperature == 0.7
    assert from_checkpoint(Checkpoint(metadata={})) == SamplingDefaults()
    (tmp_path / "generation_config.json").write_text("not JSON")
    assert from_checkpoint(Checkpoint(tmp_path)) == SamplingDefaults()


def test_a_request_s_own_sampling_wins(serve):
    # With temperature 0 random text is always the same; with the API's default it is not.
    server = serve(FakeExecutor(), defaults=SamplingDefaults(temperature=0.0, reason="a test"))

    def texts(**fields):
        answers = [server.chat("x", max_tokens=24, **fields).json() for _ in range(3)]
        return {answer["choices"][0]["message"]["content"] for answer in answers}

    assert len(texts()) == 1
    assert len(texts(temperature=1)) == 3
    health = server.http.get("/health").json()
    assert health["sampling"] == {"value": {"temperature": 0.0}, "reason": "a test"}
