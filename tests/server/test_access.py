"""Who may come in, what is public, and what the log keeps."""

from __future__ import annotations

import logging
import time

import pytest

from tests.fakes import FakeExecutor
from tests.server.harness import MODEL

KEYS = ("first-key", "zweiter-schlüssel")


def bearer(key: str) -> dict[str, bytes]:
    return {"authorization": f"Bearer {key}".encode()}


def test_keys(serve):
    server = serve(FakeExecutor(), api_keys=KEYS)
    for headers in (
        {},
        bearer("wrong"),
        {"authorization": "Bearer"},
        {"authorization": "Basic first-key"},
    ):
        for path in ("/v1/models", "/openapi.json", "/nowhere"):
            response = server.http.get(path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert server.http.post("/v1/chat/completions", headers=headers).status_code == 401
    assert server.http.get("/v1/models", headers=bearer("first-key")).status_code == 200
    assert server.http.get("/v1/models", headers={"authorization": "bearer first-key"}).is_success
    # With a key any name is fine, and /health needs none.
    assert server.http.get("/health", headers={"host": "kt.example.org"}).status_code == 200


def test_a_key_that_is_not_ascii(serve):
    server = serve(FakeExecutor(), api_keys=KEYS)
    assert server.http.get("/v1/models", headers=bearer(KEYS[1])).status_code == 200
    assert server.http.get("/v1/models", headers=bearer("schlüssel")).status_code == 401


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000"])
def test_without_keys_local_names_are_answered(random_server, host):
    assert random_server.http.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil", ""])
def test_without_keys_other_names_are_not(random_server, host):
    """A web page whose domain has been pointed at 127.0.0.1 sends its own name."""
    response = random_server.http.get("/v1/models", headers={"host": host})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"


def test_health_shows_what_runs_and_why(random_server):
    health = random_server.http.get("/health").json()
    assert health["status"] == "ok"
    assert health["model"] == MODEL
    assert health["variant"] == {
        "value": "avx512_vnni",
        "reason": "the best that this CPU has",
    }
    assert "aliases" not in health  # they hold paths
    before = health["stats"]["completion_tokens"]
    random_server.chat(max_tokens=5, ignore_eos=True)
    after = random_server.http.get("/health").json()["stats"]
    assert after["completion_tokens"] == before + 5
    assert after["running"] == 0


def test_models(random_server):
    listed = random_server.http.get("/v1/models").json()
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert card["id"] == MODEL
    assert (card["object"], card["owned_by"], card["max_model_len"]) == ("model", "kt", 1024)
    assert random_server.http.get("/v1/models/fake-1b").json() == card
    assert random_server.http.get("/v1/models//models/fake.gguf").json() == card


def test_request_ids(random_server):
    def id_for(value: str | None) -> str:
        headers = {"x-request-id": value} if value is not None else {}
        return random_server.http.get("/health", headers=headers).headers["x-request-id"]

    assert id_for("trace-1.a_B") == "trace-1.a_B"
    assert id_for(None) != id_for(None)
    for bad in ("a b", "x" * 65, "", 'a"b'):
        assert id_for(bad).startswith("req_")


def test_the_log_has_a_line_a_request_and_no_text(random_server, caplog):
    lines: list[str] = []
    with caplog.at_level(logging.DEBUG):
        response = random_server.chat("my secret", max_tokens=16, ignore_eos=True)
        other = random_server.http.get("/a%0aforged%20line")
        ids = tuple(r.headers["x-request-id"] for r in (response, other))
        deadline = time.monotonic() + 5  # a line is written after its answer is sent
        while len(lines) < 2 and time.monotonic() < deadline:
            logged = [r.getMessage() for r in caplog.records if r.name == "kt.server"]
            lines = [line for line in logged if line.endswith(ids)]
            time.sleep(0.01)
    answer = response.json()["choices"][0]["message"]["content"]
    assert lines[0].startswith("POST /v1/chat/completions 200 ")
    assert lines[0].endswith(response.headers["x-request-id"])
    assert lines[1].startswith("GET /a\\nforged line 404 ")
    assert "secret" not in caplog.text
    assert answer not in caplog.text


def test_the_api_describes_itself(random_server):
    document = random_server.http.get("/openapi.json").json()
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["properties"]["temperature"]["anyOf"][0]["maximum"] == 2
    assert chat["additionalProperties"] is False
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health"} <= set(
        document["paths"]
    )
