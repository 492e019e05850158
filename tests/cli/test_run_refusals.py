"""`kt run` with what cannot run: a clear message, an exit status, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kt import download
from kt.cli import app
from kt.units import GIB
from tests.tiny import tiny_gguf, tiny_llama

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*arguments) -> (status, stdout, stderr) of `kt run`; nothing may be left in KT_HOME."""
    home = tmp_path / "kt-home"
    monkeypatch.setenv("KT_HOME", str(home))
    monkeypatch.delenv("KT_DEBUG", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = app.run(["run", *arguments])
        shown = capsys.readouterr()
        assert not home.exists()
        assert "Traceback" not in shown.err
        return status, shown.out, shown.err

    return run


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("good") / "tiny.Q4_0.gguf")


def test_a_dry_run_prints_the_plan_and_nothing_else(run: Run, good: Path) -> None:
    status, out, err = run(str(good), "--dry-run", "--json", "--context", "256")
    document = json.loads(out)
    assert status == 0 and err == ""
    assert document["fits"] is True
    assert document["plan"]["model"] == "tiny.Q4_0"
    assert document["plan"]["context"] == {"value": 256, "reason": "asked for"}


def test_a_dry_run_for_people(run: Run, good: Path) -> None:
    status, out, err = run(str(good), "--dry-run")
    assert status == 0
    assert "Plan for tiny.Q4_0" in out and "KV cache" in out and "variant" in out
    assert "Machine" in err


def test_missing_file(run: Run) -> None:
    status, out, err = run("/no/such/model.gguf")
    assert (status, out) == (4, "")
    assert "no such file or folder: /no/such/model.gguf" in err


def test_unknown_alias(run: Run) -> None:
    status, _, err = run("qwen3-31b")
    assert status == 2
    assert "Did you mean qwen3-30b" in err


def test_wrong_magic(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGML" + bytes(100))
    status, _, err = run(str(path), "--dry-run")
    assert status == 4
    assert "x.gguf" in err and "GGUF" in err


@pytest.mark.parametrize("keep", [3, 30, 500, -1])
def test_truncated_gguf(run: Run, tmp_path: Path, good: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(good.read_bytes()[:keep])
    status, _, err = run(str(path), "--dry-run")
    assert status == 4
    assert "cut.gguf" in err


def test_unknown_architecture(run: Run, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mystery"}))
    status, _, err = run(str(folder), "--dry-run")
    assert status == 4
    assert "'mystery' is not supported" in err and "qwen3_moe" in err
    assert "`kt models` lists models that it can run." in err


def test_truncated_safetensors(run: Run, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-9])
    status, _, err = run(str(folder), "--dry-run")
    assert status == 4
    assert f"{folder}: {file.name} is truncated: " in err and "Download the file again." in err


def test_missing_shard(run: Run, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", shard_bytes=100_000)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 2
    shards[0].unlink()
    shards[1].unlink()
    status, _, err = run(str(folder), "--dry-run")
    assert status == 4
    assert shards[0].name in err and shards[1].name in err


def test_port_taken(run: Run, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kt.cli.run._survey", lambda: pytest.fail("began before it had the port"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, out, err = run(str(good), "--port", str(port))
    assert (status, out) == (2, "")
    assert f"port {port} on 127.0.0.1 is already in use" in err
    assert "--port" in err


def test_an_open_address_needs_a_key(run: Run, good: Path) -> None:
    status, _, err = run(str(good), "--host", "0.0.0.0")
    assert status == 2
    assert "--api-key" in err


def limit_memory(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """A control group that leaves `limit` bytes."""
    from kt.machine.survey import survey

    machine = survey(gpus=False)
    memory = dataclasses.replace(
        machine.memory, limit=limit, usable=limit, usable_reason="what the memory limit leaves"
    )
    limited = dataclasses.replace(machine, memory=memory)
    monkeypatch.setattr("kt.machine.survey.survey", lambda *_, **__: limited)


def sparse_model(folder: Path) -> Path:
    """A llama of 3 GiB in bfloat16 whose weights are a hole in a file."""
    hidden, wide, vocab = 4096, 61_440, 320
    shapes = {"model.embed_tokens": [vocab, hidden], "model.norm": [hidden]}
    for layer in range(2):
        at = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{at}.self_attn.{name}"] = [hidden, hidden]
        shapes |= {f"{at}.mlp.{name}": [wide, hidden] for name in ("gate_proj", "up_proj")}
        shapes[f"{at}.mlp.down_proj"] = [hidden, wide]
        shapes |= {
            f"{at}.{name}": [hidden] for name in ("input_layernorm", "post_attention_layernorm")
        }
    end, header = 0, {}
    for name, shape in shapes.items():
        size = math.prod(shape) * 2
        header[f"{name}.weight"] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_larger_than_the_memory_limit(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, GIB)
    folder = sparse_model(tmp_path / "big")
    assert (folder / "model.safetensors").stat().st_size > 3 * GIB
    status, out, err = run(str(folder), "--port", "0")
    assert (status, out) == (5, "")
    assert "big needs " in err and "may use 1073741824 here" in err
    assert "what the memory limit leaves" in err
    assert "Even as Q4_0 it would need" in err


def test_a_refused_plan_as_json(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, 3 * GIB)
    status, out, err = run(str(sparse_model(tmp_path / "big")), "--dry-run", "--json")
    document = json.loads(out)
    memory = document["plan"]["memory"]
    assert status == 5
    assert document["fits"] is False
    assert memory["needed_bytes"] > memory["usable_bytes"] == 3 * GIB
    assert memory["parts"]["mlp"] == 2 * 3 * 4096 * 61_440 * 2
    assert "The same model as a Q8_0 GGUF would fit" in err


def test_weights_that_do_not_fit_are_not_downloaded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, GIB)
    monkeypatch.setattr("kt.download.fetch", lambda *_, **__: pytest.fail("downloaded"))
    status, _, err = run("llama3.1-8b", "--port", "0")
    assert status == 5
    assert "16100000000 bytes of weights" in err and "Nothing was downloaded" in err


def test_offline_without_a_copy(run: Run) -> None:
    status, _, err = run("owner/not-here", "--port", "0")
    assert status == 6
    assert "HF_HUB_OFFLINE is set, and owner/not-here is not in the cache" in err
    status, _, err = run("owner/not-here", "--dry-run")
    assert status == 6
    assert "owner/not-here is not downloaded yet, and HF_HUB_OFFLINE keeps kt from asking" in err
    assert err.splitlines()[-1].startswith("Connect and unset HF_HUB_OFFLINE")


def test_an_interrupt_of_a_download_says_how_it_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "fetch", stop)
    status, _, err = run("owner/not-here", "--port", "0")
    assert status == 130
    last = "interrupted; what has arrived stays, and the same command goes on from there"
    assert err.splitlines()[-1] == last


def test_json_needs_a_dry_run(run: Run, good: Path) -> None:
    status, _, err = run(str(good), "--json")
    assert status == 2
    assert "--json goes with --dry-run" in err


def test_a_variant_that_does_not_exist(run: Run, good: Path) -> None:
    status, _, err = run(str(good), "--dry-run", "--variant", "avx1024")
    assert status == 2
    assert "--variant='avx1024' is not a kernel variant" in err
    assert "avx512_vnni" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cors", "*"), "every web page could use this server"),
        (("--tool-form", "xml"), "there is no tool form 'xml'; there are kimi_k2"),
        (("--reasoning-form", "loud"), "there is no reasoning form 'loud'"),
        (("--max-queue", "-1"), "max-queue"),
        (("--request-timeout", "0"), "request-timeout"),
    ],
)
def test_options_of_the_server_that_make_no_sense(
    run: Run, good: Path, arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = run(str(good), "--port", "0", *arguments)
    assert (status, out) == (2, "")
    assert words in " ".join(err.split())


def test_a_family_that_is_not_implemented_is_told_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kt.download.is_cached", lambda *_: pytest.fail("looked for its files"))
    monkeypatch.setattr("kt.download.fetch", lambda *_, **__: pytest.fail("downloaded"))
    monkeypatch.setattr("kt.models.families.FAMILIES", {"llama": None})
    for option in (["--dry-run"], ["--port", "0"]):
        status, _, err = run("olmoe-7b", *option)
        assert status == 4
        assert "olmoe-7b cannot run with this version of kt: family olmoe is not" in err
    assert app.run(["bench", "olmoe-7b"]) == 4


def test_a_dry_run_of_what_is_not_here_knows_the_catalogue(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    limit_memory(monkeypatch, 20 * GIB)
    status, _, err = run("qwen3-30b", "--dry-run")
    assert status == 5
    assert "61100000000 bytes of weights" in err and "Nothing was downloaded" in err
    status, out, err = run("llama3.1-8b", "--dry-run", "--json")
    assert status == 6
    document = json.loads(out)
    assert document["fits"] is None and document["error"]["status"] == 6
    assert document["error"]["message"] in err
    assert "is not downloaded yet (weights of 15.0 GiB; kt may use 20.0 GiB" in err


def test_a_dry_run_without_a_network_knows_the_catalogue(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    limit_memory(monkeypatch, 20 * GIB)
    status, out, err = run("llama3.1-8b", "--dry-run", "--json")
    assert status == 6 and json.loads(out)["fits"] is None
    assert "(weights of 15.0 GiB; kt may use 20.0 GiB of memory): cannot reach the hub" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("",), "MODEL is empty"),
        (("GOOD", "--prompt", ""), "the prompt is empty"),
        (("GOOD", "--prompt", " \n"), "the prompt is empty"),
        (("GOOD", "--context", "1"), "--context 1: choose 16 to"),
        (("GOOD", "--threads", "1000"), "--threads 1000: this machine has 1 to"),
        (("GOOD", "--port", "99999"), "Choose one from 1 to 65535, or 0 for a free one."),
    ],
)
def test_values_that_make_no_sense(
    run: Run, good: Path, arguments: tuple[str, ...], words: str
) -> None:
    port = [] if "--port" in arguments else ["--port", "0"]
    status, out, err = run(*(str(good) if a == "GOOD" else a for a in arguments), *port)
    assert (status, out) == (2, "")
    assert words in err


def test_kt_threads_is_refused_like_its_option(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KT_THREADS", "1000")
    status, _, err = run(str(good), "--dry-run")
    assert status == 2
    assert "KT_THREADS=1000: this machine has 1 to" in err


def test_native_code_that_is_missing_is_built_not_fetched(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kt.kernels import abi, library

    monkeypatch.setattr(abi, "LIBRARIES", tmp_path)
    for cached in (abi.ffi, library.load):
        cached.cache_clear()
    try:
        status, _, err = run(str(good), "--prompt", "hi")
    finally:
        for cached in (abi.ffi, library.load):
            cached.cache_clear()
    assert status == 3
    assert "`pip install .`, in the source tree" in err
