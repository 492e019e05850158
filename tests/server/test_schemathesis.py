"""Requests made up from the server's own description never make it fail."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from tests.fakes import FakeExecutor, replying
from tests.server.harness import TextTokenizer, running
from tests.server.test_output_forms import TWO_CALLS


@pytest.fixture(scope="module")
def api():
    """The description, of a server that answers with a thought and calls."""
    reply = "<think>Hm.</think>Well." + TWO_CALLS["hermes"]
    tokenizer = TextTokenizer("<tool_call> </think> tools")
    executor = FakeExecutor(reply=replying(reply), context=2048, n_pages=1024)
    with running(executor, tokenizer) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
)


@pytest.mark.parametrize("path", PATHS)
def test_no_request_is_a_server_error(api, path):
    statuses = set()

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(api[path]["POST"].as_strategy())
    def try_it(case):
        if isinstance(case.body, dict):
            case.body["model"] = "fake-1b"  # else nearly all would end as unknown models
        response = case.call(timeout=20)
        statuses.add(response.status_code)
        case.validate_response(response, checks=[not_a_server_error])

    try_it()
    assert 400 in statuses or path == "/detokenize"


def test_all_paths_are_tried(api):
    posts = {path for path, methods in api.raw_schema["paths"].items() if "post" in methods}
    assert posts == set(PATHS)


def test_what_is_sent_is_what_is_described(api):
    document = api.raw_schema
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], path
            assert ("400" in operation["responses"]) == (method == "post"), path
    assert "HTTPValidationError" not in document["components"]["schemas"]
