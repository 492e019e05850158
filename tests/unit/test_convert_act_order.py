"""Conversions of GPTQ in act-order: bytes and orders of columns say what the source says."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file

from kt.convert import packer, report
from kt.convert.convert import Conversion
from kt.errors import ModelError, UsageError
from kt.kernels import reference
from kt.kernels.library import load
from kt.weights.checkpoint import open_checkpoint
from kt.weights.packed_folder import MANIFEST, ORDERED, PLAIN, UNFINISHED
from tests import quantised
from tests.executors import NATIVE, all_logits, executor
from tests.moe_reference import assert_like, reference_of, relative_error
from tests.quantised import SCHEMES, SIZES, Scheme, compressed, quantise
from tests.tiny import tiny_qwen3_moe

IDS = [3, 17, 5, 99, 250, 31, 8, 64, 12]
# A dense layer between two of experts, all with other orders.
MODEL = {**SIZES, "num_hidden_layers": 3, "mlp_only_layers": [1], "intermediate_size": 224}
DENSE = "model.layers.1.mlp."

# Converts argv[1] into argv[2] and kills itself after the part argv[3].
KILLED = """
import os, signal, sys
from pathlib import Path
from kt.convert.convert import Conversion
from kt.kernels.library import load
from kt.weights.checkpoint import open_checkpoint

def progress(done, total):
    if done >= float(sys.argv[3]) * total:
        os.kill(os.getpid(), signal.SIGKILL)

conversion = Conversion(open_checkpoint(Path(sys.argv[1])), "native")
conversion.run(Path(sys.argv[2]), load("avx2"), threads=2, progress=progress)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return tiny_qwen3_moe(tmp_path_factory.mktemp("plain"), seed=3, **MODEL)


@pytest.fixture(scope="module")
def made(plain, tmp_path_factory) -> tuple[Path, Path]:
    """A checkpoint in act-order, and what a float64 formula makes of it, in float32."""
    return quantise(plain, tmp_path_factory.mktemp("made"), SCHEMES["gptq_act_order"])


@pytest.fixture(scope="module")
def packed(made, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("packed") / "to"
    convert(made[0], to, "native")
    return to


def convert(source: Path, dest: Path, target: str, *, threads: int = 2, **options) -> dict:
    conversion = Conversion(open_checkpoint(source), target, **options)
    manifest = conversion.run(dest, load("avx2"), threads=threads)
    sizes = {file.name: file.nbytes for file in conversion.files}
    assert {path.name: path.stat().st_size for path in dest.glob("*.safetensors")} == sizes
    return manifest


def logits(path: Path, variant: str = "avx2", **options) -> np.ndarray:
    built = executor(path, variant, pages=4, tokens=32, **options)
    try:
        return all_logits(built, IDS)
    finally:
        built.close()


def records(manifest: dict) -> dict[str, dict]:
    return {r: row for file in manifest["files"].values() for r, row in file["matrices"].items()}


def orders(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a conversion that hold an order."""
    files = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: t for file in files for name, t in file.items() if t.dtype == np.int32}


def hf_names(role: str, count: int) -> list[str]:
    if not role.startswith("layers."):
        return ["model.embed_tokens.weight" if role == "embed" else "lm_head.weight"]
    _, layer, *rest = role.split(".")
    start = f"model.layers.{layer}."
    if rest[0] == "experts":
        return [f"{start}mlp.experts.{i}.{rest[1]}_proj.weight" for i in range(count)]
    if rest[0] == "router":
        return [f"{start}mlp.gate.weight"]
    module = "self_attn" if rest[0] in "qkvo" else "mlp"
    return [f"{start}{module}.{rest[0]}_proj.weight"]


def stored_values(folder: Path, manifest: dict) -> dict[str, np.ndarray]:
    """Every matrix by its name in the source: its bytes unpacked, and columns and rows put back as
    docs/convert.md says.
    """
    library, found = load("avx2"), {}
    pool = library.new_pool(None, 1)
    for name, record in manifest["files"].items():
        tensors = load_file(folder / name)
        for role, row in record["matrices"].items():
            for i, source in enumerate(hf_names(role, row["count"])):
                data = tensors[role][i * row["stride"] : (i + 1) * row["stride"]].copy()
                there = np.empty((row["n"], row["k"]), np.float32)
                at = library.ffi.from_buffer(data)
                library.unpack(pool, row["format"], there.shape, at, there)
                values = np.empty_like(there)
                rows = tensors[row["rows"]][i] if "rows" in row else np.arange(row["n"])
                columns = tensors[row["columns"]][i] if "columns" in row else np.arange(row["k"])
                values[np.ix_(rows, columns)] = there
                found[source] = values
    return found


def rewritten(made: tuple[Path, Path], to: Path, change) -> tuple[Path, Path]:
    """Both folders with other tensors: change(tensors of the first, of the second)."""
    parts = [load_torch(folder / "model.safetensors") for folder in made]
    change(*parts)
    paths = to / "quantised", to / "plain"
    for source, path, tensors in zip(made, paths, parts, strict=True):
        shutil.copytree(source, path)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return paths


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "act_order" in name])
def test_native_keeps_the_formats_and_the_bits(scheme, plain, tmp_path):
    source, values = quantise(plain, tmp_path / "from", SCHEMES[scheme])
    to = tmp_path / "to"
    manifest = convert(source, to, "native")
    for role, row in records(manifest).items():
        part = role.split(".")[-1]
        kept = {"embed": "BF16", "lm_head": "BF16", "router": "F32"}
        assert row["format"] == kept.get(part, SCHEMES[scheme].packed), role
        assert row["relative_error"] == 0
        mates = {"k": "q", "v": "q", "up": "gate"}
        if part not in kept:
            assert row["columns"] == role[: -len(part)] + mates.get(part, part) + ".columns"
    assert manifest["kt_packed"] == ORDERED
    got, want = stored_values(to, manifest), load_file(values / "model.safetensors")
    for name, matrix in got.items():
        np.testing.assert_array_equal(matrix, want[name], err_msg=name)
    for variant in {"avx2", NATIVE[0]}:
        np.testing.assert_array_equal(logits(to, variant), logits(source, variant))
    np.testing.assert_array_equal(logits(to, read=True), logits(source))


def test_one_order_for_what_reads_one_input(packed):
    """Or the tests would say little; of experts, everyone has its own."""
    found = orders(packed)
    assert sorted(found) == sorted(
        f"layers.{layer}.{part}.columns"
        for layer, mlp in ((0, "experts."), (1, ""), (2, "experts."))
        for part in ("q", "o", f"{mlp}gate", f"{mlp}down")
    )
    every = [row for order in found.values() for row in order]
    assert len(every) == 3 * 2 + 2 + 2 * 2 * 4 == len({row.tobytes() for row in every})
    for row in every:
        assert not np.array_equal(row, np.arange(len(row)))
        np.testing.assert_array_equal(np.sort(row), np.arange(len(row)))


def test_threads_change_nothing(made, packed, tmp_path):
    convert(made[0], tmp_path / "to", "native", threads=3)
    for path in packed.iterdir():
        assert path.read_bytes() == (tmp_path / "to" / path.name).read_bytes()


@pytest.mark.parametrize("target", ["int8", "bf16"])
def test_other_formats_round_the_exact_values_in_the_order_of_the_source(target, made, tmp_path):
    manifest = convert(made[0], tmp_path / "to", target)
    assert manifest["kt_packed"] == PLAIN and not orders(tmp_path / "to")
    rows, got = records(manifest), stored_values(tmp_path / "to", manifest)
    for name, values in load_torch(made[1] / "model.safetensors").items():
        if values.ndim == 2:
            role = next(r for r, row in rows.items() if name in hf_names(r, row["count"]))
            want = reference.round_weights(values, rows[role]["format"]).numpy()
            np.testing.assert_array_equal(got[name], want, err_msg=name)


def test_only_experts_are_rounded(made, tmp_path):
    manifest = convert(made[0], tmp_path / "to", "int8", experts_only=True)
    for role, row in records(manifest).items():
        ordered = role.split(".")[-1] in ("q", "k", "v", "o", "gate", "up", "down")
        assert ("columns" in row) == (ordered and ".experts." not in role)
    assert_like(reference_of(made[1]), tmp_path / "to", NATIVE[0], 3e-2)


@pytest.mark.parametrize("target", ["native", "int4"])
def test_rows_of_what_has_another_format_move_for_down(target, plain, tmp_path):
    """gate and up were not quantised; down is in the very format asked for, and stays."""
    scheme = SCHEMES["gptq_act_order_128"]
    made = quantise(plain, tmp_path / "from", scheme)

    def change(tensors: dict, values: dict) -> None:
        for module in (DENSE + "gate_proj", DENSE + "up_proj"):
            for ending in (".qweight", ".qzeros", ".scales", ".g_idx"):
                del tensors[module + ending]
            values[module + ".weight"] = values[module + ".weight"].bfloat16().float()
            tensors[module + ".weight"] = values[module + ".weight"].bfloat16()

    source, values = rewritten(made, tmp_path, change)
    group = {"int4": 128}.get(target)
    manifest = convert(source, tmp_path / "to", target, group=group)
    rows = records(manifest)
    assert rows["layers.1.down"]["format"] == scheme.packed
    assert rows["layers.1.up"]["format"] == ("BF16" if target == "native" else "I4_G128")
    for part in ("gate", "up"):
        assert rows[f"layers.1.{part}"]["rows"] == "layers.1.down.columns"
        assert "columns" not in rows[f"layers.1.{part}"]
    got, want = stored_values(tmp_path / "to", manifest), load_file(values / "model.safetensors")
    for name, matrix in got.items():
        rounded = target == "int4" and ("gate_proj" in name or "up_proj" in name)
        if rounded and name.startswith(DENSE):
            assert 0.05 < relative_error(matrix, want[name]) < 0.12
        elif target == "native" or name.endswith("_proj.weight"):
            np.testing.assert_array_equal(matrix, want[name], err_msg=name)
    if target == "native":
        np.testing.assert_array_equal(logits(tmp_path / "to"), logits(source))
    else:
        assert relative_error(logits(tmp_path / "to"), logits(source)) < 0.2


def test_what_is_rounded_beside_what_stays_gets_its_order(plain, tmp_path, monkeypatch):
    """compressed-tensors in act-order: q, v and o have zero points, which int4 has not; k stays."""
    symmetric = quantised.int4(64, dtype=torch.float16)
    with_zeros = quantised.int4(64, dtype=torch.float16, zeros=True)

    def write(matrix: np.ndarray, rng: np.random.Generator):
        module = quantised.READS
        order = np.random.default_rng(zlib.crc32(input_of(module).encode())).permutation(
            matrix.shape[1]
        )
        one_of = symmetric if module.endswith("k_proj") else with_zeros
        parts, values = one_of(matrix[:, order], rng)
        codes = parts[".weight_packed"].numpy().view(np.uint32)
        codes = (codes[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(
            len(codes), -1
        )
        back = np.argsort(order)
        parts[".weight_packed"] = torch.from_numpy(quantised.words(codes[:, back]))
        parts[".weight_g_idx"] = torch.from_numpy((back // 64).astype(np.int32))
        return parts, np.ascontiguousarray(values[:, back])

    input_of = quantised._input_of
    config = compressed(4, "int", "group", group_size=64, symmetric=False, actorder="group")
    config["config_groups"]["of_k"] = {
        "targets": ["re:.*k_proj$"],
        "weights": {**config["config_groups"]["group_0"]["weights"], "symmetric": True},
    }
    monkeypatch.setattr(quantised, "_input_of", lambda module: module)
    monkeypatch.setattr(packer, "PIECE_WEIGHTS", 1)  # pieces of 128 rows
    source, values = quantise(plain, tmp_path / "from", Scheme(config, write, ""))
    assert open_checkpoint(source).tensor("layers.0.k").packed_format == "I4_G64"
    manifest = convert(source, tmp_path / "native", "native")
    np.testing.assert_array_equal(logits(tmp_path / "native"), logits(source))
    manifest = convert(source, tmp_path / "to", "int4", group=64)
    rows = records(manifest)
    got, want = stored_values(tmp_path / "to", manifest), load_file(values / "model.safetensors")
    for part in "qkv":
        assert rows[f"layers.0.{part}"]["columns"] == "layers.0.q.columns"
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        error = relative_error(got[name], want[name])
        assert error == 0 if part == "k" else 0.01 < error < 0.12
    assert "columns" not in rows["layers.0.o"]
    assert relative_error(logits(tmp_path / "to"), logits(source)) < 0.25


@pytest.mark.parametrize("part", [0.1, 0.6, 0.99])
def test_killed_it_ends_with_the_same_bytes(part, made, packed, tmp_path):
    dest = tmp_path / "to"
    command = [sys.executable, "-c", KILLED, str(made[0]), str(dest), str(part)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert not (dest / MANIFEST).exists()
    convert(made[0], dest, "native")
    assert {p.name: p.read_bytes() for p in dest.iterdir()} == {
        p.name: p.read_bytes() for p in packed.iterdir()
    }


def test_columns_in_another_order_are_another_source(made, packed, tmp_path):
    def change(tensors: dict, _values: dict) -> None:
        group = tensors[DENSE + "down_proj.g_idx"]
        group[[0, -1]] = group[[-1, 0]]
        assert group[0] != group[-1]

    source, _ = rewritten(made, tmp_path, change)
    shutil.copytree(packed, tmp_path / "to")
    with pytest.raises(UsageError, match="holds another conversion: source"):
        convert(source, tmp_path / "to", "native")


def copy(packed: Path, to: Path, change) -> Path:
    """A copy of a conversion, its manifest changed by change(matrices by role)."""
    shutil.copytree(packed, to)
    manifest = json.loads((to / MANIFEST).read_text())
    change(records(manifest))
    (to / MANIFEST).write_text(json.dumps(manifest))
    return to


@pytest.mark.parametrize(
    ("role", "key", "value"),
    [
        ("layers.0.q", "columns", 7),
        ("layers.0.q", "columns", None),
        ("layers.0.o", "columns", "layers.0.nothing.columns"),
        ("layers.0.o", "columns", "layers.0.o"),
        ("layers.0.o", "columns", "layers.0.experts.gate.columns"),
        ("layers.0.o", "rows", "layers.0.o.columns"),
        ("layers.0.k", "columns", "layers.0.o.columns"),
        ("layers.0.experts.up", "columns", None),
        ("layers.0.experts.up", "rows", None),
        ("layers.0.experts.gate", "rows", "layers.0.q.columns"),
        ("layers.0.experts.down", "columns", None),
        ("layers.1.down", "columns", "layers.1.nothing.columns"),
        ("layers.0.router", "columns", "layers.0.q.columns"),
        ("embed", "columns", "layers.0.q.columns"),
    ],
)
def test_orders_that_do_not_fit_are_refused(role, key, value, packed, tmp_path):
    def change(rows: dict) -> None:
        rows[role].pop(key, None)
        if value is not None:
            rows[role][key] = value

    with pytest.raises(ModelError):
        open_checkpoint(copy(packed, tmp_path / "to", change))


@pytest.mark.parametrize("damage", [0, -1, 1 << 30])
def test_an_order_that_names_a_column_twice_or_none_is_refused(damage, packed, tmp_path):
    to = copy(packed, tmp_path / "to", lambda rows: None)
    path = to / "layer-00000.safetensors"
    order = orders(packed)["layers.0.experts.gate.columns"][2]
    data = bytearray(path.read_bytes())
    at = bytes(data).index(order.tobytes()) + 4 * int(np.argmax(order))
    data[at : at + 4] = np.int32(damage).tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"experts\.gate\.columns does not name every column once"):
        open_checkpoint(to)
    with pytest.raises(ModelError, match=r"layer-00000\.safetensors has other bytes"):
        report.verify(to)


def test_an_unfinished_one_of_the_layout_without_orders_is_refused(made, packed, tmp_path):
    """As kt began it when it made float32 of such matrices."""
    to = tmp_path / "to"
    to.mkdir()
    manifest = json.loads((packed / MANIFEST).read_text())
    (to / UNFINISHED).write_text(json.dumps(manifest | {"kt_packed": PLAIN, "files": {}}))
    with pytest.raises(UsageError, match=f"kt_packed is {PLAIN} there and {ORDERED} here"):
        convert(made[0], to, "native")
