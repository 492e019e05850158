"""docs/server.md names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

from kt.server.chat_request import ChatRequest
from kt.server.completion_request import CompletionRequest
from kt.server.embeddings import EmbeddingsRequest
from kt.server.messages_request import MessagesRequest
from kt.server.reasoning import REASONING_FORMS
from kt.server.responses_request import ResponsesRequest
from kt.server.tool_parsers import TOOL_FORMS

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def named(names):
    return [name for name in names if not re.search(rf"`[^`\n]*{re.escape(name)}\b", PAGE)]


def test_every_path(random_server):
    paths = random_server.http.get("/openapi.json").json()["paths"]
    assert named(path.replace("{name}", "NAME") for path in paths) == []


def test_every_field():
    for model in (
        ChatRequest,
        CompletionRequest,
        EmbeddingsRequest,
        MessagesRequest,
        ResponsesRequest,
    ):
        assert named(set(model.model_fields) - {"text", "reasoning"}) == []


def test_every_fact_of_health(random_server):
    health = random_server.http.get("/health").json()
    stats = health.pop("stats")
    assert named([*health, *(f"stats.{name}" for name in stats)]) == []
    assert set(stats["prefill_chunk"]) == {"value", "reason"}


def test_every_form():
    assert named(form.name for form in (*TOOL_FORMS, *REASONING_FORMS)) == []


def test_every_metric(random_server):
    text = random_server.http.get("/metrics").text
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    assert len(names) > 10
    assert named(names) == []
    told = set(re.findall(r"`(kt_[a-z_]+)", PAGE))
    assert told == names
