"""`kt convert` as people and programs use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kt.cli import app
from kt.weights.share import Share
from tests.tiny import tiny_gguf, tiny_qwen3_moe


@pytest.fixture
def kt(monkeypatch, capsys, tmp_path):
    """kt(*arguments) -> (status, stdout, stderr)."""
    monkeypatch.setenv("KT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: object) -> tuple[int, str, str]:
        status = app.run([str(a) for a in arguments])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return status, shown.out, shown.err

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_qwen3_moe(tmp_path_factory.mktemp("source") / "tiny-moe")


def test_convert_verify_and_run(kt, model, tmp_path):
    dest = tmp_path / "packed"
    status, out, err = kt("convert", model, dest, "--format", "int8")
    assert status == 0
    assert "Relative error by file" in out and "layer-00002" in out and "Worst tensors" in out
    assert "Converting tiny-moe: done in" in err and f"kt run {dest}" in err
    status, out, _ = kt("convert", "--verify", dest)
    assert status == 0 and out.startswith("4 files, ") and "every byte" in out
    status, out, err = kt("run", dest, "--prompt", "the quick brown fox", "--context", "256")
    assert status == 0
    assert "read" in err and "huge pages make decoding faster" in err
    assert "tokens answered" in err


def test_json(kt, model, tmp_path):
    dest = tmp_path / "packed"
    status, out, _ = kt("convert", model, dest, "--format", "int4", "--dry-run", "--json")
    sizes = json.loads(out)
    assert status == 0 and not dest.exists()
    assert set(sizes["bytes_by_format"]) == {"I4_G32", "I8_G32", "F32"}
    status, out, _ = kt("convert", model, dest, "--format", "int4", "--json")
    report = json.loads(out)
    assert status == 0
    assert report["bytes"] == sizes["bytes"] == sum(row["bytes"] for row in report["layers"])
    assert {row["file"]: row["bytes"] for row in report["layers"]} == sizes["files"]
    assert report["format"] == "int4" and report["source"]["kind"] == "safetensors"
    assert report["worst"][0]["relative_error"] > 0.05
    status, out, _ = kt("convert", "--verify", dest, "--json")
    assert json.loads(out) == {"ok": True, "files": 4, "bytes": report["bytes"]}
    status, out, _ = kt("run", dest, "--dry-run", "--json")
    plan = json.loads(out)["plan"]
    assert plan["loading"]["value"] == "read"
    assert plan["memory"]["source_bytes"] == plan["memory"]["mapped_bytes"] == 0
    server = Share(dest / "kt_manifest.json")
    status, out, _ = kt("run", dest, "--dry-run", "--json")
    plan = json.loads(out)["plan"]
    assert plan["loading"]["value"] == "mapped"
    assert 0 < plan["memory"]["mapped_bytes"] <= report["bytes"]
    status, out, _ = kt("run", dest, "--dry-run")
    assert "of it mapped" in out and "of the converted files" in out
    server.close()


def test_a_second_time_there_is_nothing_to_do(kt, model, tmp_path):
    dest = tmp_path / "packed"
    command = ("convert", model, dest, "--format", "int8")
    status, out, err = kt(*command)
    assert status == 0 and "lready" not in err and "warning" not in err
    before = {path: path.stat().st_mtime_ns for path in dest.iterdir()}
    notes = dest / "notes.txt"
    for path in (notes, dest / ".gitattributes"):
        path.write_text("mine")
    again = kt(*command)
    assert again[:2] == (0, "") and "Relative error by file" in out
    warning, line = again[2].splitlines()[0], " ".join(again[2].split())
    assert warning.startswith(f"warning: {dest} ") and warning.endswith(" does not read: notes.txt")
    assert "Already converted, nothing to do: " in line
    assert f"kt convert --verify {dest} reads every byte" in line
    assert "Converting" not in again[2]
    assert json.loads(kt(*command, "--json")[1])["already_converted"] is True
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert notes.read_text() == "mine"
    fresh = kt("convert", model, tmp_path / "fresh", "--format", "int8", "--json")[1]
    assert json.loads(fresh)["already_converted"] is False


def test_sizes_for_people(kt, model, tmp_path):
    status, out, err = kt("convert", model, tmp_path / "to", "--format", "int4", "--dry-run")
    assert status == 0 and "I4_G32" in out and "in 4 files" in out
    assert "output head get 8 bits" in err


def test_calibration(kt, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox and the lazy dog " * 40)
    arguments = ("convert", model, tmp_path / "to", "--format", "int4", "--calibration", text)
    status, out, err = kt(*arguments, "--json")
    assert status == 0 and f"Reading {text} with tiny-moe: done in" in err
    assert set(json.loads(out)["calibration"]) == {"sha256", "variant"}
    status, _, err = kt(*arguments)
    assert status == 0 and "Reading" not in err  # nothing is left to do
    status, _, err = kt(*arguments[:-2])
    assert status == 2 and "another conversion: calibration" in err


def test_making_a_model_larger_gets_a_warning(kt, tmp_path):
    source = tiny_gguf(tmp_path / "small.gguf", encoding="Q4_0")
    status, _, err = kt("convert", source, tmp_path / "to", "--format", "int8", "--dry-run")
    assert status == 0 and "matrices take more room as int8" in err
    status, _, err = kt("convert", source, tmp_path / "to", "--format", "native", "--dry-run")
    assert status == 0 and "more room" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "kt convert lacks SOURCE, DEST, --format"),
        (["a", "--format", "int4"], "kt convert lacks DEST (formats"),
        (
            ["{model}", "{to}"],
            "lacks --format (formats: int8, int4, int4m, fp8, bf16, f16, native)",
        ),
        (["{model}", "{to}", "--format", "int3"], "int3"),
        (["{model}", "{to}", "--format", "int8", "--group", "16"], "--group 16: choose 32"),
        (["{model}", "{to}", "--format", "bf16", "--group", "64"], "bf16 has no scales"),
        (
            ["{to}", "--verify", "{to}"],
            "--verify goes alone, or with --json; here it is with SOURCE",
        ),
        (["--verify", "{to}", "--threads", "1", "--dry-run"], "with --threads, --dry-run"),
        (
            ["--verify", "{to}", "--experts-only", "--group", "32", "--calibration", "{model}"],
            "with --group, --experts-only, --calibration",
        ),
        (["--verify", ""], "DEST is empty"),
        (["{model}", "", "--format", "int8"], "DEST is empty"),
        (["{model}", " ", "--format", "int8", "--dry-run"], "DEST is empty"),
        (["", "{to}", "--format", "int8"], "empty"),
        (["{to}", "{to}", "--format", "int8"], "no such file or folder"),
        (["{model}", "{model}", "--format", "int8"], "is not empty"),
        (["{model}", "{to}", "--format", "int8", "--threads", "9999"], "--threads 9999"),
        (["--verify", "{model}"], "is not a conversion"),
        (["--verify", "{to}"], "is not a conversion"),
        (
            ["{model}", "{to}", "--format", "int8", "--calibration", "{model}/config.json"],
            "--calibration goes with",
        ),
    ],
)
def test_what_makes_no_sense(kt, model, tmp_path, arguments, message):
    places = {"model": model, "to": tmp_path / "to"}
    status, out, err = kt("convert", *[a.format(**places) for a in arguments])
    assert status in (2, 4) and message in err and not out
    assert not (tmp_path / "to").exists()


def test_ctrl_c_leaves_what_the_same_command_continues(kt, tmp_path):
    source = tiny_qwen3_moe(tmp_path / "model", num_hidden_layers=20, num_experts=16)
    dest = tmp_path / "to"
    command = ["convert", str(source), str(dest), "--format", "int4"]
    environment = {**os.environ, "KT_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [sys.executable, "-m", "kt", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    while process.poll() is None and len(list(dest.glob("layer*.safetensors"))) < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted; the same command continues the conversion"
    assert not list(dest.glob("*.partial"))
    done = {p: p.stat().st_mtime_ns for p in dest.glob("layer*.safetensors")}
    assert 2 <= len(done) < 20
    assert kt(*command)[0] == 0
    again = {p for p in done if p.stat().st_mtime_ns != done[p]}
    assert again <= {max(done)}  # a file is noted after it is there
    assert kt("convert", "--verify", dest)[0] == 0
