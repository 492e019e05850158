"""`kt bench` from end to end on tiny models and layers. Speeds are whatever they are; what is
counted and what is reported is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kt.bench import attention, experts, floors, model, serving
from kt.cli import app, render
from kt.units import MIB
from tests import installed
from tests.cli.test_run_refusals import limit_memory
from tests.fakes import FakeExecutor
from tests.server.harness import running
from tests.tiny import tiny_gguf, tiny_qwen3_moe_gguf

Run = Callable[..., tuple[int, str, str]]

LAYER = ("--hidden", "64", "--intermediate", "96", "--experts", "8", "--top-k", "2")

BRIEF = ("--repeat", "2", "--seconds", "0")
QUICK = ("--layers", "2", *BRIEF)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*arguments) -> (status, stdout, stderr) of `kt bench`, with short floors."""
    monkeypatch.setattr(floors, "SAMPLE_SECONDS", 0.005)
    for module in (model, experts, attention):
        monkeypatch.setattr(module, "beyond_caches", lambda cpus, least: 4 * MIB)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = app.run(["bench", *arguments])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return status, shown.out, shown.err

    return run


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("dense") / "tiny.Q4_0.gguf")


def test_an_interrupt_says_that_there_is_no_result(
    run: Run, dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    for module in (model, experts, attention):
        monkeypatch.setattr(module, "bench", stop)
    for command in ([str(dense)], ["experts", *LAYER, "--format", "int4"], ["attention"]):
        status, out, err = run(*command)
        assert (status, out) == (130, "")
        assert err.endswith("interrupted; nothing was measured yet\n")


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize(
    ("command", "said", "points"),
    [
        (["MODEL", "--prefill", "4,8", "--context", "8"], "prefill of 8", "prefill"),
        (
            ["experts", *LAYER, "--format", "int4", "--tokens", "1,2", *QUICK],
            "2 tokens",
            "points",
        ),
        (
            ["attention", "--context", "32,64", "--prefill", "0", *BRIEF],
            "decode at 64",
            "decode",
        ),
    ],
)
def test_an_interrupt_keeps_what_was_measured(
    run: Run,
    dense: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    said: str,
    points: str,
    as_json: list[str],
) -> None:
    note = render.note

    def stop(text: str, **options: Any) -> None:
        note(text, **options)
        if text.startswith(said):
            raise KeyboardInterrupt

    monkeypatch.setattr(render, "note", stop)
    words = [str(dense) if word == "MODEL" else word for word in command]
    status, out, err = run(*words, *as_json)
    assert status == 130
    assert err.endswith("interrupted; the rest was not measured\n")
    if as_json:
        report = json.loads(out)
        assert (len(report[points]), report["cut"]) == (1, True)
    else:
        assert "TOKENS" in out or "CONTEXT" in out


def test_a_server_of_its_own_that_does_not_start(run: Run, tmp_path: Path) -> None:
    status, _, err = run("serve", str(tmp_path))
    assert status == 4 and f"kt run {tmp_path} did not start" in err


def test_a_model_that_does_not_fit_is_not_to_be_downloaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    limit_memory(monkeypatch, 20 << 30)
    for command in (["qwen3-30b"], ["serve", "qwen3-30b"]):
        status, out, err = run(*command)
        assert (status, out) == (5, "")
        assert "61100000000 bytes of weights" in err and "downloads it" not in err


def test_more_decoded_tokens_than_positions(run: Run, dense: Path) -> None:
    status, out, err = run(str(dense), "--decode", "100000000000")
    assert (status, out) == (2, "")
    assert "--decode 100000000000: this model has" in err


def check_point(point: dict[str, Any]) -> None:
    """What every point has, and that its parts agree with each other."""
    seconds, reached, limits = point["seconds"], point["reached"], point["floors"]
    assert 0 < seconds["best"] <= seconds["median"]
    read = limits["read_bytes_per_second"]
    assert min(read.values()) > 0
    assert read["mean"] == pytest.approx((read["before"] + read["after"]) / 2)
    assert limits["bandwidth_seconds"] == pytest.approx(point["bytes"] / read["mean"])
    rates = limits["operations_per_second"]
    kinds = point["operations_by_kind"]
    assert sum(kinds.values()) == pytest.approx(point["operations"])
    least = sum(kinds[kind] / rates[kind]["mean"] for kind in kinds)
    assert limits["arithmetic_seconds"] == pytest.approx(least)
    for which in ("median", "best"):
        for name in ("bandwidth", "arithmetic"):
            fraction = limits[f"{name}_seconds"] / seconds[which]
            assert reached[which][name] == pytest.approx(fraction)
        assert reached[which]["larger"] == max(
            reached[which]["bandwidth"], reached[which]["arithmetic"]
        )


def test_a_model(run: Run, dense: Path) -> None:
    status, out, _ = run(
        str(dense),
        *("--prefill", "32,48", "--context", "16,64", "--batch", "1,2", "--decode", "4"),
        *("--repeat", "2", "--json"),
    )
    assert status == 0
    document = json.loads(out)
    assert list(document) == [
        "schema",
        "bench",
        "model",
        "cpu",
        "variant",
        "threads",
        "kv_format",
        "read_buffer_bytes",
        "prefill",
        "decode",
        "cut",
    ]
    assert document["schema"] == 1 and document["bench"] == "model"
    assert document["model"] == "tiny.Q4_0"
    assert [(p["tokens"], p["context"], p["batch"]) for p in document["prefill"]] == [
        (32, 0, 1),
        (48, 0, 1),
    ]
    assert [(p["tokens"], p["context"], p["batch"]) for p in document["decode"]] == [
        (4, 16, 1),
        (8, 16, 2),
        (4, 64, 1),
        (8, 64, 2),
    ]
    for point in (*document["prefill"], *document["decode"]):
        check_point(point)
        rates = point["tokens_per_second"]
        assert rates["median"] == pytest.approx(point["tokens"] / point["seconds"]["median"])
        assert rates["best"] == pytest.approx(point["tokens"] / point["seconds"]["best"])
        assert sum(point["bytes_by_part"].values()) == pytest.approx(point["bytes"])
        assert point["bytes_per_token"] == pytest.approx(point["bytes"] / point["tokens"])
        assert point["seconds"]["repetitions"] == 2
    # Keys and values of positions 0 to 16, 17, 18, 19: 3 layers, 2 KV heads, 16 dims padded to 32.
    position = 3 * 2 * 2 * 32 * 2
    parts = document["decode"][0]["bytes_by_part"]
    assert parts["attention"] == (17 + 18 + 19 + 20) * position
    # The tied head, 320 rows of 64 in Q4_0: half a byte a code, two for the scale of 32.
    assert parts["head"] == 4 * 320 * 64 * 18 // 32


def test_a_mixture_of_experts_for_people(run: Run, tmp_path: Path) -> None:
    path = tiny_qwen3_moe_gguf(tmp_path / "moe.gguf")
    status, out, err = run(
        "model", str(path), *("--prefill", "16", "--context", "16", "--batch", "1", "--repeat", "1")
    )
    assert status == 0
    assert "Prefill, beside the arithmetic floor" in out
    assert "Decode, beside the bandwidth floor" in out
    assert "memory reads" in out and "dot_int8" in out
    assert "prefill of 16 tokens" in err and "Loading moe" in err


def test_only_prefill_and_options_before_the_model(run: Run, dense: Path) -> None:
    status, out, _ = run("--json", "--decode", "0", "--prefill", "8", "--repeat", "1", str(dense))
    document = json.loads(out)
    assert status == 0 and document["decode"] == [] and len(document["prefill"]) == 1


def test_the_usual_lengths_are_those_that_the_model_has(run: Run, dense: Path) -> None:
    status, out, _ = run(str(dense), "--repeat", "1", "--batch", "1", "--decode", "2", "--json")
    document = json.loads(out)
    assert status == 0
    assert [point["tokens"] for point in document["prefill"]] == [128, 512]
    assert [point["context"] for point in document["decode"]] == [128]


def test_a_layer(run: Run) -> None:
    status, out, err = run(
        "experts", *LAYER, *QUICK, "--format", "Q8_0", "--tokens", "1,6", "--json"
    )
    assert status == 0
    document = json.loads(out)
    assert list(document) == [
        "schema",
        "bench",
        "cpu",
        "variant",
        "threads",
        "hidden",
        "intermediate",
        "experts",
        "top_k",
        "format",
        "layers",
        "expert_bytes",
        "weight_bytes",
        "read_from",
        "points",
        "cut",
    ]
    assert document["schema"] == 1 and document["bench"] == "experts"
    assert document["format"] == "i8_g32"
    assert document["layers"] == {"value": 2, "reason": "asked for"}
    # gate, up: 6 panels of 64 columns; down: 4 of 96, 1632 bytes each, rounded up to 1664.
    expert = 2 * 6 * 1088 + 4 * 1664
    assert document["expert_bytes"] == expert
    assert document["weight_bytes"] == 2 * 8 * expert
    one, six = document["points"]
    assert one["tokens"] == 1 and one["active_experts"] == 2 and one["bytes"] == 2 * expert
    assert one["operations_by_kind"] == {"dot_int8": 2 * 2 * 3 * 64 * 96}
    assert six["tokens"] == 6 and 2 < six["active_experts"] <= 8
    assert six["bytes"] == pytest.approx(six["active_experts"] * expert)
    assert six["operations"] == 6 * one["operations"]
    for point in (one, six):
        assert 0 < point["relative_error"] < 0.02
        assert {"best", "median", "call_median", "rest_median"} == set(point["milliseconds"])
        assert point["milliseconds"]["call_median"] > 0
    assert "1 token\n" in err and "6 tokens\n" in err


def test_a_layer_for_people(run: Run) -> None:
    status, out, _ = run(
        "experts", *LAYER, *QUICK, "--format", "bf16", "--tokens", "3", "--threads", "1"
    )
    assert status == 0
    assert "8 experts, top-2, bf16" in out and "1 thread\n" in out
    assert "READ FLOOR" in out and "dot_bf16" in out


def test_a_lower_variant(run: Run) -> None:
    status, out, _ = run(
        "experts",
        *LAYER,
        *QUICK,
        *("--format", "int4", "--tokens", "2", "--variant", "avx2", "--json"),
    )
    assert status == 0
    assert json.loads(out)["variant"]["value"] == "avx2"


HEADS = ("--heads", "6", "--kv-heads", "2", "--head-dim", "32")


def test_attention(run: Run) -> None:
    status, out, err = run(
        "attention",
        *HEADS,
        *("--context", "64,576", "--prefill", "64", "--repeat", "2", "--seconds", "0", "--json"),
    )
    assert status == 0
    document = json.loads(out)
    assert list(document) == [
        "schema",
        "bench",
        "cpu",
        "variant",
        "threads",
        "pass_layers",
        "heads",
        "kv_heads",
        "head_dim",
        "kv_format",
        "kv_pages",
        "kv_bytes",
        "read_buffer_bytes",
        "decode",
        "prefill",
        "cut",
    ]
    assert document["schema"] == 1 and document["bench"] == "attention"
    # 576 + 64 positions, two rows of bfloat16 for each KV head.
    position = 2 * 2 * 32 * 2
    pages = document["pass_layers"] * document["kv_pages"]["value"]
    assert document["kv_bytes"] == pages * 32 * position
    assert document["kv_bytes"] >= 4 * MIB
    decode, prefill = document["decode"], document["prefill"]
    assert [(p["context"], p["tokens"]) for p in decode] == [(64, 1), (576, 1)]
    assert [(p["context"], p["tokens"]) for p in prefill] == [(64, 64), (576, 64)]
    assert [p["bytes"] for p in decode] == [64 * position, 576 * position]
    assert [p["bytes"] for p in prefill] == [128 * position, 640 * position]
    assert decode[1]["operations_by_kind"] == {"dot_bf16": 4 * 576 * 6 * 32}
    seen = sum(range(577, 641))
    assert prefill[1]["operations_by_kind"] == {"dot_bf16": 4 * seen * 6 * 32}
    for point in (*decode, *prefill):
        assert 0 < point["relative_error"] < 0.01
        assert point["call_seconds"]["median"] > 0
    assert "decode at 576 positions" in err and "prefill at 64 positions" in err


def test_int8_keys_and_values(run: Run, dense: Path) -> None:
    status, out, _ = run(
        "attention",
        *HEADS,
        *("--context", "64", "--prefill", "32", "--repeat", "2", "--seconds", "0", "--json"),
        *("--kv-format", "int8"),
    )
    assert status == 0
    document = json.loads(out)
    # Per head: 32 codes each, a float16 a key (64 bytes for 16 of them), a float32 a value.
    position = 2 * (2 * 32 + 4 + 4)
    assert document["kv_format"] == "int8"
    assert document["decode"][0]["bytes"] == 64 * position
    assert document["decode"][0]["operations_by_kind"] == {"dot_int8": 6 * 64 * 6 * 32}
    assert 0.001 < document["decode"][0]["relative_error"] < 0.02
    status, out, _ = run(
        str(dense),
        *("--prefill", "32", "--context", "16", "--batch", "1", "--decode", "1"),
        *("--repeat", "1", "--kv-format", "int8", "--json"),
    )
    assert status == 0
    document = json.loads(out)
    assert document["kv_format"]["value"] == "int8"
    assert document["decode"][0]["bytes_by_part"]["attention"] == 17 * 3 * position


def test_attention_for_people(run: Run) -> None:
    status, out, _ = run(
        "attention",
        *HEADS,
        *("--context", "32", "--prefill", "0", "--repeat", "2", "--seconds", "0"),
        *("--threads", "1"),
    )
    assert status == 0
    assert "6 heads of 32, 2 KV heads" in out and "1 thread\n" in out
    assert "READ FLOOR" in out and "dot_bf16" in out and "Prefill" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--heads", "5", "--kv-heads", "2"), "--heads 5: not a multiple of the 2 KV heads"),
        (("--head-dim", "0"), "--head-dim 0: a layer has at least 1"),
        (("--context", "100"), "--context 100: not a multiple of 32"),
        (("--prefill", "33"), "--prefill 33: not a multiple of 32"),
        (("--context", "0"), "--context 0: 0 is not a positive whole number"),
        (("--context", "99999999968"), "positions are"),
        (("--heads", "99999999", "--kv-heads", "1"), "queries, keys and values of 512 tokens need"),
        (("--seconds", "inf"), "'inf': it should be less than"),
        (("--kv-format", "int4"), " 'int4' is not one of 'bf16', 'int8'."),
    ],
)
def test_a_refused_attention(run: Run, arguments: tuple[str, ...], words: str) -> None:
    status, out, err = run("attention", *arguments)
    assert status in (2, 5) and out == ""
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "q3"), "--format q3: there is no such format"),
        (("--format", "int8", "--top-k", "9"), "--top-k 9"),
        (("--format", "int8", "--tokens", "0"), "--tokens 0: 0 is not a positive whole number"),
        (("--format", "int8", "--tokens", "1,,2"), "an empty entry is not a positive"),
        (("--format", "int8", "--tokens", "1,-2"), "-2 is not a positive whole number"),
        (("--format", "int8", "--threads", "0"), "--threads 0: this machine has"),
        (("--format", "int8", "--variant", "sse"), "'sse' is not a kernel variant"),
        (("--format", "q4_k"), "has blocks of 256"),
    ],
)
def test_a_refused_layer(run: Run, arguments: tuple[str, ...], words: str) -> None:
    status, out, err = run("experts", *LAYER, *QUICK, *arguments)
    assert (status, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prefill", "513"), "--prefill 513: this model has 512 positions"),
        (("--context", "500", "--decode", "16"), "--context 500 and 16 decoded tokens"),
        (("--batch", "x"), "--batch x: x is not a positive whole number"),
        (("--threads", "4096"), "--threads 4096"),
    ],
)
def test_refused_lengths(run: Run, dense: Path, arguments: tuple[str, ...], words: str) -> None:
    status, out, err = run(str(dense), *arguments)
    assert (status, out) == (2, "")
    assert words in err


def test_a_model_that_is_not_there(run: Run) -> None:
    status, out, err = run("./no-such-file.gguf")
    assert status != 0 and out == ""
    assert "no-such-file.gguf" in err


def test_a_model_that_is_not_downloaded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, out, err = run("nobody/nothing")
    assert (status, out) == (2, "")
    assert "nobody/nothing is not downloaded yet" in err
    assert "kt run" in err


def test_help_imports_nothing_heavy() -> None:
    """One command after the other in one process; below each, what is imported by then."""
    code = (
        "import sys\nfrom kt.cli.app import run\n"
        "for command in ([], ['experts'], ['attention'], ['model']):\n"
        "    status = run(['bench', *command, '--help'])\n"
        "    print('imported', sorted({'numpy', 'torch', 'cffi'} & set(sys.modules)), status)"
    )
    env = installed.environment()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    *helps, rest = done.stdout.split("imported [] 0\n")
    assert (len(helps), rest) == (4, "")
    for shown in helps:
        assert any(words in shown for words in ("experts", "Sequences at once", "Query heads"))


def check_serving(report: dict[str, Any], counts: list[int]) -> None:
    assert [point["streams"] for point in report["points"]] == counts
    assert report["points"][0]["ratio"] == 1
    for point in report["points"]:
        rates = point["tokens_per_second"]
        assert 0 < rates["median"] <= rates["best"]
        for times in (point["first_seconds"], point["gap_seconds"]):
            assert 0 < times["p50"] <= times["p90"] <= times["p99"]


def test_a_server_that_runs(run: Run) -> None:
    executor = FakeExecutor(latency=0.002)
    with running(executor, api_keys=["secret"]) as server:
        options = ("--streams", "1,3", "--tokens", "9", "--repeat", "2", "--api-key", "secret")
        status, out, _ = run("serve", server.url, *options, "--json")
        assert status == 0
        report = json.loads(out)
        assert report["cut"] is False
        check_serving(report, [1, 3])
        # 3 rounds of 1 + 3 requests, 9 tokens each, whatever the model would have said.
        assert server.engine.stats().completion_tokens == 3 * 4 * 9
        # A step takes 2 ms and makes one token of every stream.
        assert report["points"][1]["gap_seconds"]["p50"] >= 0.002
        assert report["points"][0]["tokens_per_second"]["best"] <= 500
        assert report["points"][1]["tokens_per_second"]["best"] <= 1500
        status, out, err = run("serve", server.url, *options)
        assert status == 0 and out.count("\n") == 4
        assert "RATIO: tokens per second of all streams together, against 1 stream" in err
        status, _, err = run("serve", server.url, "--api-key", "wrong")
        assert status == 1 and "not valid" in err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_an_interrupt_within_a_round_keeps_the_streams_before_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, as_json: list[str]
) -> None:
    measured = serving._together
    calls = iter(range(100))

    def stop(*arguments: Any) -> serving.Round:
        if next(calls) == 5:  # of the second round, after one to warm up
            raise KeyboardInterrupt
        return measured(*arguments)

    monkeypatch.setattr(serving, "_together", stop)
    command = ("--streams", "1,2", "--tokens", "3", *as_json)
    with running(FakeExecutor(latency=0.002)) as server:
        status, out, err = run("serve", server.url, *command)
    assert status == 130 and err.endswith("interrupted; the rest was not measured\n")
    if as_json:
        report = json.loads(out)
        check_serving(report, [1, 2])
        assert report["cut"] is True
    else:
        assert [line.split()[0] for line in out.splitlines()[2:]] == ["1", "2"]


def test_an_interrupt_does_not_wait_for_the_answers(run: Run) -> None:
    interrupt = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
    with running(FakeExecutor(latency=0.1)) as server:
        interrupt.start()
        began = time.monotonic()
        status, out, err = run("serve", server.url, "--streams", "3", "--tokens", "400")
    assert (status, out) == (130, "") and err.endswith("interrupted; nothing was measured yet\n")
    assert time.monotonic() - began < 20  # one answer takes 40


def test_what_is_no_server(run: Run) -> None:
    status, _, err = run("serve", "http://127.0.0.1:9")
    assert status == 1 and "127.0.0.1:9" in err
    status, _, err = run("serve", "http://127.0.0.1:9", "--streams", "4,2000")
    assert status == 2 and "--streams 2000: at most 1024" in err
    status, _, err = run("serve", "/no/such/file.gguf")
    assert status == 4 and "/no/such/file.gguf" in err


def test_a_model_that_does_not_start(run: Run, dense: Path) -> None:
    status, _, err = run("serve", str(dense), "--streams", "300")
    assert status == 2 and "--streams 300: a server of kt computes at most 256" in err
    status, _, err = run("serve", str(dense), "--threads", "9999")
    assert status == 2 and "did not start" in err and "--threads 9999" in err


def test_a_server_of_its_own(run: Run, dense: Path) -> None:
    status, out, _ = run(
        "serve", str(dense), "--streams", "2", "--tokens", "4", "--repeat", "1", "--json"
    )
    assert status == 0
    check_serving(json.loads(out), [2])


def test_a_server_that_breaks_off(run: Run) -> None:
    def fail(batch: Any) -> None:
        if len(batch.tokens) == 1:
            raise RuntimeError("broken")

    with running(FakeExecutor(fail=fail)) as server:
        status, _, err = run("serve", server.url, "--streams", "1")
        assert status == 1 and "broke off" in err
