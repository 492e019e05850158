"""Conversions: what is in the files, what runs from them, what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file

from kt.convert import report
from kt.convert.convert import Conversion
from kt.convert.destination import PARTIAL
from kt.convert.targets import target_format
from kt.errors import KtError, ModelError, NotFinite, UsageError
from kt.kernels import reference
from kt.kernels.library import load
from kt.models.families import spec
from kt.placement import budget
from kt.tokenizer import Tokenizer
from kt.weights.checkpoint import open_checkpoint
from kt.weights.packed_folder import MANIFEST, UNFINISHED, is_packed
from tests.executors import all_logits, executor
from tests.quantised import SCHEMES, quantise
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen3_moe, tiny_qwen3_moe_gguf

IDS = [3, 17, 5, 99, 250, 31, 8, 64, 12]


def convert(source: Path, dest: Path, target: str, *, threads: int = 2, **options) -> dict:
    return Conversion(open_checkpoint(source), target, **options).run(
        dest, load("avx2"), threads=threads
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def moe(tmp_path_factory) -> Path:
    """Some layers dense, sizes that are no multiples of panels or blocks."""
    folder = tmp_path_factory.mktemp("moe")
    return tiny_qwen3_moe(
        folder, moe_intermediate_size=40, mlp_only_layers=[1], hidden_size=72, head_dim=48
    )


def logits(path: Path, variant: str = "avx2") -> np.ndarray:
    made = executor(path, variant, pages=4, tokens=32)
    try:
        return all_logits(made, IDS)
    finally:
        made.close()


def test_native_gives_the_same_bits_on_any_variant(moe, tmp_path):
    convert(moe, tmp_path / "to", "native")
    for variant in ("avx2", "avx512_bf16"):
        np.testing.assert_array_equal(logits(tmp_path / "to", variant), logits(moe, variant))


@pytest.mark.parametrize("encoding", ["Q4_1", "Q8_0", "Q4_K", "IQ1_S", "IQ2_S", "IQ3_XXS"])
def test_native_of_a_gguf_gives_the_same_bits(encoding, tmp_path):
    llama = tiny_gguf(tmp_path / "llama.gguf", encoding=encoding)
    sparse = tiny_qwen3_moe_gguf(tmp_path / "moe.gguf", encoding=encoding)
    for source in (llama, sparse):
        dest = tmp_path / source.stem
        convert(source, dest, "native")
        np.testing.assert_array_equal(logits(dest), logits(source))
        texts = "the quick <|im_end|> brown", "fox"
        want, got = (Tokenizer.load(open_checkpoint(path)) for path in (source, dest))
        assert [got.encode(t) for t in texts] == [want.encode(t) for t in texts]
        assert got.eos_ids == want.eos_ids and got.template == want.template


@pytest.mark.parametrize(
    "scheme",
    [
        "fp8_blocks",
        "fp8_blocks_64",
        "modelopt_nvfp4",
        "ct_nvfp4",
        "ct_mxfp4",
        "ct_int4_128_bytes",
        "gptq_v1",
        "gptq_v1_zeros",
        "awq",
        "awq_32",
    ],
)
def test_native_of_quantised_safetensors_gives_the_same_bits(scheme, tmp_path):
    """With scales that multiply whole matrices, and codes whose rows do not lie together."""
    sizes = {"hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 128}
    folder = tiny_qwen3_moe(tmp_path / "plain", **sizes)
    quantised, _ = quantise(folder, tmp_path / "to", SCHEMES[scheme])
    convert(quantised, tmp_path / "packed", "native")
    np.testing.assert_array_equal(logits(tmp_path / "packed"), logits(quantised))


@pytest.mark.parametrize(
    ("target", "group"),
    [("int8", None), ("int8", 64), ("int8", 128), ("bf16", None), ("f16", None)],
)
def test_weights_are_rounded_as_documented(target, group, moe, tmp_path):
    """Other libraries read the files, and kt_unpack gives what the formula gives."""
    manifest = convert(moe, tmp_path / "to", target, group=group)
    original = load_torch(moe / "model.safetensors")
    library = load("avx2")
    pool = library.new_pool(None, 1)
    seen = 0
    for name, record in manifest["files"].items():
        stored = load_file(tmp_path / "to" / name)
        for role, row in record["matrices"].items():
            want = torch.stack([original[name].float() for name in hf_names(role)])
            expected = "F32" if role.endswith("router") else target_format(target, group or 32)
            assert row["format"] == expected
            size = row["stride"]
            for index, matrix in enumerate(want):
                packed = np.ascontiguousarray(stored[role][index * size : (index + 1) * size])
                got = np.empty(tuple(matrix.shape), np.float32)
                at = library.ffi.from_buffer(packed)
                library.unpack(pool, expected, tuple(matrix.shape), at, got)
                np.testing.assert_array_equal(
                    got, reference.round_weights(matrix, expected).numpy()
                )
                seen += 1
    assert seen == sum(t.ndim == 2 for t in original.values())


def hf_names(role: str) -> list[str]:
    """Names in the Hugging Face file of the matrices of a role of this model."""
    if role in ("embed", "lm_head"):
        return ["model.embed_tokens.weight" if role == "embed" else "lm_head.weight"]
    _, layer, *rest = role.split(".")
    start = f"model.layers.{layer}."
    if rest[0] == "experts":
        return [f"{start}mlp.experts.{i}.{rest[1]}_proj.weight" for i in range(8)]
    if rest[0] == "router":
        return [f"{start}mlp.gate.weight"]
    module = "self_attn" if rest[0] in "qkvo" else "mlp"
    return [f"{start}{module}.{rest[0]}_proj.weight"]


def test_int4_stays_close_and_says_how_close(moe, tmp_path):
    manifest = convert(moe, tmp_path / "to", "int4")
    layers = report.layers(manifest)
    assert [row["file"] for row in layers] == sorted(
        (row["file"] for row in layers), key=lambda name: (name != "rest.safetensors", name)
    )
    assert layers[0]["formats"] == ["I8_G32"] and 0.003 < layers[0]["relative_error"] < 0.007
    for row in layers[1:]:  # of normal weights: about 0.08 with a search, 0.086 without
        assert 0.07 < row["relative_error"] < 0.084
    worst = report.worst(manifest, 100)
    assert all(a["relative_error"] >= b["relative_error"] for a, b in pairwise(worst))
    assert worst[0]["relative_error"] > max(row["relative_error"] for row in layers)
    assert any("experts" in row["tensor"] and row["tensor"].endswith("]") for row in worst)


@pytest.mark.parametrize("target", ["int4", "int4m"])
def test_larger_groups_are_smaller_and_err_more(target, moe, tmp_path):
    """Of normal weights, in rows of 40 to 72 columns, which are less than one group of 128."""
    sizes, errors = [], []
    for group in (32, 64, 128):
        to = tmp_path / str(group)
        manifest = convert(moe, to, target, group=group)
        row = manifest["files"]["layer-00000.safetensors"]["matrices"]["layers.0.experts.up"]
        assert manifest["group"] == group
        assert row["format"] == target_format(target, group)
        assert manifest["files"]["rest.safetensors"]["matrices"]["embed"]["format"] == (
            f"I8_G{group}"
        )
        sizes.append(sum(record["bytes"] for record in manifest["files"].values()))
        errors.append(row["relative_error"])
        assert np.isfinite(logits(to)).all()
    assert sizes[0] > sizes[1] >= sizes[2]
    assert errors[0] < errors[1] <= errors[2] < 1.4 * errors[0]


@pytest.mark.parametrize(
    ("target", "group", "words"),
    [
        ("int4", 48, "--group 48: choose 32, 64, 128"),
        ("fp8", 64, "fp8 has a scale for 128 columns"),
        ("bf16", 128, "bf16 has no scales"),
        ("native", 32, "native keeps the groups"),
    ],
)
def test_groups_that_a_format_has_not_are_refused(target, group, words, moe):
    with pytest.raises(UsageError, match=words):
        Conversion(open_checkpoint(moe), target, group=group)


def test_experts_only_leaves_the_rest(moe, tmp_path):
    manifest = convert(moe, tmp_path / "to", "int4m", experts_only=True)
    for record in manifest["files"].values():
        for role, row in record["matrices"].items():
            want = "I4_G32M" if ".experts." in role else "BF16"
            assert row["format"] == ("F32" if role.endswith("router") else want)


def test_matrices_are_mapped_where_they_lie(moe, tmp_path):
    convert(moe, tmp_path / "to", "int4")
    checkpoint = open_checkpoint(tmp_path / "to")
    assert checkpoint.kind == "packed"
    model = spec(checkpoint)
    for layer in (0, 2):
        for part in ("gate", "up", "down"):
            matrices = checkpoint.experts(layer, part)
            starts = [m.data.ctypes.data for m in matrices]
            assert len(matrices) == 8 and all(map(is_packed, matrices))
            assert starts[0] % 64 == 0
            assert {b - a for a, b in pairwise(starts)} == {matrices[0].data.size}
    weights = budget.weight_bytes(model, checkpoint)
    assert sum(weights.values()) == checkpoint.tensor_bytes
    made = executor(tmp_path / "to", "avx2", pages=4, tokens=32)
    assert made.memory["weights"] == sum(v for k, v in weights.items() if k != "norms")
    made.close()


def test_the_same_whatever_the_threads_and_the_library(tmp_path):
    source = tiny_llama(tmp_path / "model", hidden_size=512, intermediate_size=2500)
    convert(source, tmp_path / "one", "int4", threads=1)
    Conversion(open_checkpoint(source), "int4").run(
        tmp_path / "other", load("avx512_bf16"), threads=3
    )
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_a_second_run_changes_nothing(moe, tmp_path):
    convert(moe, tmp_path / "to", "int8")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "to").iterdir()}
    assert convert(moe, tmp_path / "to", "int8") == json.loads(
        (tmp_path / "to" / MANIFEST).read_text()
    )
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "to").iterdir()} == before


def test_damage_is_found_and_repaired(moe, tmp_path):
    to = tmp_path / "to"
    convert(moe, to, "int8")
    whole = contents(to)
    damaged = to / "layer-00001.safetensors"
    bytes_ = bytearray(damaged.read_bytes())
    bytes_[-1000] ^= 1
    damaged.write_bytes(bytes_)
    with pytest.raises(ModelError, match=r"layer-00001.safetensors has other bytes"):
        report.verify(to)
    damaged.write_bytes(bytes_[:-64])
    with pytest.raises(ModelError, match="layer-00001"):
        open_checkpoint(to)
    damaged.unlink()
    with pytest.raises(ModelError, match=r"layer-00001.safetensors is missing"):
        report.verify(to)
    convert(moe, to, "int8")
    report.verify(to)
    assert contents(to) == whole


def test_a_conversion_that_is_not_finished_does_not_run(moe, tmp_path):
    to = tmp_path / "to"
    convert(moe, to, "int8")
    (to / MANIFEST).rename(to / UNFINISHED)
    with pytest.raises(ModelError, match="not finished"):
        open_checkpoint(to)


def test_what_a_destination_may_hold(moe, tmp_path):
    to = tmp_path / "to"
    convert(moe, to, "int8")
    with pytest.raises(UsageError, match="format is 'int8' there and 'int4' here"):
        convert(moe, to, "int4")
    other = tiny_qwen3_moe(tmp_path / "other", seed=9)
    with pytest.raises(UsageError, match="holds another conversion: source"):
        convert(other, to, "int8")
    with pytest.raises(UsageError, match="is not empty, and no conversion"):
        convert(moe, other, "int8")
    with pytest.raises(UsageError, match="not a folder"):
        convert(moe, moe / "config.json", "int8")
    with pytest.raises(ModelError, match="converted already"):
        convert(to, tmp_path / "again", "int4")


def test_names_that_are_too_long(moe, tmp_path):
    long = tmp_path / ("a" * 300)
    with pytest.raises(KtError, match=r"cannot write to .*: File name too long"):
        convert(moe, long, "int8")
    with pytest.raises(ModelError, match="cannot be read: File name too long"):
        report.verify(long)


def test_a_file_that_may_not_be_read_is_a_fault(packed, monkeypatch):
    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(report, "hash_file", refused)
    with pytest.raises(ModelError, match=r"rest\.safetensors cannot be read: Permission denied"):
        report.verify(packed)


def test_a_folder_that_may_not_be_read_is_named(packed, monkeypatch):
    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refused)
    for read in (report.verify, open_checkpoint):
        with pytest.raises(ModelError, match=f"{packed} cannot be read: Permission denied"):
            read(packed)


def test_two_at_a_time_are_refused(moe, tmp_path):
    refused = []

    def second(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(KtError, match="another process converts") as caught:
                convert(moe, tmp_path / "to", "int8")
            refused.append(caught)

    Conversion(open_checkpoint(moe), "int8").run(
        tmp_path / "to", load("avx2"), threads=1, progress=second
    )
    assert refused


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_weights_that_the_format_cannot_hold_are_named(bad, tmp_path):
    """1e6 is above float16's range."""
    source = tiny_llama(tmp_path / "model")
    tensors = load_torch(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 4] = bad
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model.layers.1.mlp.up_proj|layers.1.up"):
        convert(source, tmp_path / "to", "f16")
    left = sorted(p.name for p in (tmp_path / "to").iterdir())
    assert left == [UNFINISHED, "layer-00000.safetensors", "rest.safetensors"]


def test_sizes_are_known_before(moe, tmp_path):
    conversion = Conversion(open_checkpoint(moe), "int4")
    expected = {file.name: file.nbytes for file in conversion.files}
    conversion.run(tmp_path / "to", load("avx2"), threads=1)
    written = {p.name: p.stat().st_size for p in (tmp_path / "to").glob("*.safetensors")}
    assert written == expected and conversion.nbytes == sum(expected.values())


@pytest.fixture(scope="module")
def packed(moe, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("packed") / "to"
    convert(moe, to, "int8")
    return to


REST = ("files", "rest.safetensors")
EMBED = (*REST, "matrices", "embed")


def damaged(packed, tmp_path, path, value):
    """A copy of a converted folder with `value` at `path` of its manifest; (): instead of it."""
    to = tmp_path / "to"
    shutil.copytree(packed, to)
    manifest = json.loads((to / MANIFEST).read_text())
    at = manifest
    for key in path[:-1]:
        at = at[key]
    if path:
        at[path[-1]] = value
    (to / MANIFEST).write_text(json.dumps(manifest if path else value))
    return to


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []),
        (("kt_packed",), 99),
        (("files",), []),
        (("files",), {"../config.json": {"bytes": 1, "matrices": {}}}),
        (("config",), 7),
        (("source",), None),
        (REST, None),
        ((*REST, "bytes"), 1),
        ((*REST, "matrices"), ["embed"]),
        ((*REST, "matrices", "other"), {}),
        (EMBED, {}),
        ((*EMBED, "n"), -1),
        ((*EMBED, "n"), 10**30),
        ((*EMBED, "k"), float("inf")),
        ((*EMBED, "k"), 7),
        ((*EMBED, "stride"), 64),
        ((*EMBED, "format"), "I9"),
        ((*EMBED, "format"), "I4_G32"),
        ((*EMBED, "count"), 2),
        ((*EMBED, "factors"), [1, 2, 3]),
        ((*EMBED, "factors"), "x"),
    ],
)
def test_a_damaged_manifest_is_refused(path, value, packed, tmp_path):
    """Before anything is given to the kernels."""
    to = damaged(packed, tmp_path, path, value)
    with pytest.raises(ModelError):
        checkpoint = open_checkpoint(to)
        budget.weight_bytes(spec(checkpoint), checkpoint)
        executor(to, "avx2", pages=4, tokens=32)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("files",), []),
        (REST, 5),
        ((*REST, "bytes"), "x"),
        ((*REST, "matrices"), []),
        ((*EMBED, "relative_error"), "x"),
    ],
)
def test_a_damaged_manifest_is_neither_verified_nor_continued(path, value, moe, packed, tmp_path):
    to = damaged(packed, tmp_path, path, value)
    with pytest.raises(ModelError, match="is damaged"):
        report.verify(to)
    with pytest.raises(UsageError, match="cannot be read"):
        convert(moe, to, "int8")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("files",), {}),
        (("config",), None),
        (("checksum",), "0" * 64),
        ((*EMBED, "n"), 7),
        ((*EMBED, "factors"), [1e30]),
        ((*EMBED, "relative_error"), 0.5),
    ],
)
def test_a_manifest_of_other_content_is_not_verified(path, value, packed, tmp_path):
    report.verify(packed)
    with pytest.raises(ModelError, match=r"kt_manifest\.json says something else than kt wrote"):
        report.verify(damaged(packed, tmp_path, path, value))


def test_the_checksum_of_a_manifest(packed):
    manifest = json.loads((packed / MANIFEST).read_text())
    told = manifest.pop("checksum")
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    assert told == hashlib.sha256(text.encode()).hexdigest()


def test_no_file_is_written_through_a_link(moe, tmp_path):
    victim, to = tmp_path / "victim", tmp_path / "to"
    victim.write_text("mine")
    to.mkdir()
    (to / f"{UNFINISHED}{PARTIAL}").symlink_to(victim)
    convert(moe, to, "int8")
    assert victim.read_text() == "mine"
    report.verify(to)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match="nowhere is a link to what is not there"):
        convert(moe, tmp_path / "nowhere", "int8")


def test_damaged_scales_are_said_to_be_damaged(packed, tmp_path):
    to = tmp_path / "to"
    shutil.copytree(packed, to)
    path = to / "layer-00001.safetensors"
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    first, end = json.loads(data[8:start])["layers.1.q"]["data_offsets"]
    data[start + first : start + end] = b"\xff" * (end - first)
    path.write_bytes(data)
    with pytest.raises(NotFinite, match="tells whether the converted files are damaged") as caught:
        logits(to)
    assert f"`kt convert --verify {to}`" in caught.value.message


def test_files_that_the_manifest_lost_are_made_again(moe, packed, tmp_path):
    to = tmp_path / "to"
    shutil.copytree(packed, to)
    manifest = json.loads((to / MANIFEST).read_text())
    (to / MANIFEST).write_text(json.dumps(manifest | {"files": {}}))
    convert(moe, to, "int8")
    assert contents(to) == contents(packed)


def test_the_revision_of_a_hub_repository_is_kept(moe, tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("0123456789" * 4)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(moe)
    manifest = convert(snapshot, tmp_path / "to", "int8", repo="a/b")
    assert manifest["source"]["name"] == "a/b"
    assert manifest["source"]["revision"] == "0123456789" * 4


def test_weights_too_small_for_the_scales_are_named(tmp_path):
    source = tiny_llama(tmp_path / "model")
    tensors = load_torch(source / "model.safetensors")
    tensors["model.layers.2.self_attn.k_proj.weight"] *= 1e-9
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers.2.k .*cannot be held in I8_G32"):
        convert(source, tmp_path / "to", "int8")


def test_a_disk_that_returns_other_bytes_stops_it(moe, tmp_path, monkeypatch):
    from kt.convert import destination

    monkeypatch.setattr(destination, "hash_file", lambda path: "0" * 64)
    with pytest.raises(KtError, match="does not hold what was written"):
        convert(moe, tmp_path / "to", "int8")
    assert list((tmp_path / "to").iterdir()) == []
