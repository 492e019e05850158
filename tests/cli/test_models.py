"""`kt models`, and that the pages about it and about `kt run` are complete."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from kt import catalog, download
from kt.cli import app
from kt.machine.survey import survey
from kt.models import families
from kt.placement.plan import plan
from kt.units import Choice
from kt.weights.checkpoint import open_checkpoint
from tests.tiny import tiny_qwen3_moe

DOCS = Path(__file__).parents[2] / "docs"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """20 GB of usable memory and an empty cache."""
    found = survey(gpus=False)
    memory = dataclasses.replace(found.memory, usable=20_000_000_000)
    fixed = dataclasses.replace(found, memory=memory)
    monkeypatch.setattr("kt.machine.survey.survey", lambda *_, **__: fixed)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def test_the_list_says_what_runs_here(capsys: Capture) -> None:
    assert app.run(["models"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert len(lines) == 1 + len(catalog.aliases())
    assert lines["tiny"].endswith("  0.008  int4_group32  apache-2.0         fits, part of kt")
    assert lines["llama3.1-8b"].endswith("  16.1  bf16          llama3.1           fits, gated")
    assert lines["qwen3-30b"].endswith("too large")
    assert " 10.2+ " in lines["gpt-oss-20b"]
    assert lines["gpt-oss-20b"].endswith("not yet")


def test_json(capsys: Capture) -> None:
    assert app.run(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["memory_usable_bytes"] == 20_000_000_000
    models = {model["alias"]: model for model in document["models"]}
    assert models["smollm2-135m"]["runnable"] and models["smollm2-135m"]["fits"]
    assert models["qwen3-30b"]["runnable"] and not models["qwen3-30b"]["fits"]
    assert models["olmoe-7b"]["not_runnable_because"] == "family olmoe is not implemented"
    assert models["gpt-oss-20b"]["size_bytes"] is None
    assert not any(model["downloaded"] for model in models.values())
    page = (DOCS / "models.md").read_text()
    for field in models["qwen3-30b"]:
        assert f"`{field}`" in page


def test_a_downloaded_model_is_marked(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "is_cached", lambda entry: entry.name == "smollm2-135m")
    app.run(["models"])
    out = capsys.readouterr().out
    assert out.count("downloaded") == 1
    assert re.search(r"smollm2-135m .* fits, downloaded", out)


def test_the_page_of_run_names_every_option(capsys: Capture) -> None:
    app.run(["run", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    page = (DOCS / "run.md").read_text()
    assert len(options) >= 17
    for option in options:
        assert f"`{option}" in page


def test_the_page_of_run_names_every_field(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_qwen3_moe(tmp_path / "m"))
    spec = families.spec(checkpoint)
    made = plan(spec, checkpoint, survey(gpus=False), model="m", variant=Choice("avx2", "a test"))
    document = made.to_json()
    page = (DOCS / "run.md").read_text()
    memory = document.pop("memory")
    for field in [*document, *memory["parts"]]:
        assert f"`{field}`" in page
    for field in memory:
        assert f"memory.{field}" in page


def test_the_page_of_run_names_every_exit_status() -> None:
    from kt import errors

    page = (DOCS / "run.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    statuses = {kind.exit_code for kind in kinds if kind is not errors.KtError}
    for status in [*statuses, app.EXIT_UNEXPECTED, app.EXIT_INTERRUPTED]:
        assert f"\n| {status} | " in page
