"""Safetensors files and folders: equal to the safetensors package, all faults in one error."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from kt.errors import ModelError
from kt.weights.checkpoint import open_checkpoint
from kt.weights.dequantize import dequantize
from kt.weights.safetensors_file import INDEX, read_file, read_folder
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("sharded"), shard_bytes=100_000)


@pytest.fixture
def copy(sharded, tmp_path) -> Path:
    for path in sharded.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_equal_the_packages(tmp_path, dtype):
    values = {"a": torch.randn(3, 5).to(dtype), "b": torch.randn(7).to(dtype)}
    save_file(values, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_file(tmp_path / "x.safetensors")
    assert set(found) == {"a", "b"}
    for name, tensor in found.items():
        np.testing.assert_array_equal(dequantize(tensor), values[name].float().numpy())
        assert not tensor.data.flags.writeable


def test_a_sharded_folder_equals_the_packages(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    assert len(shards) > 2
    want = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    found = read_folder(sharded)
    assert set(found) == set(want)
    for name, tensor in found.items():
        np.testing.assert_array_equal(dequantize(tensor), want[name].float().numpy())


def test_one_error_lists_missing_and_truncated_shards_and_keys_without_tensor(copy):
    index = json.loads((copy / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    (copy / shards[0]).unlink()
    data = (copy / shards[1]).read_bytes()
    (copy / shards[1]).write_bytes(data[:-100])
    index["weight_map"]["model.layers.9.extra"] = shards[2]
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError) as caught:
        open_checkpoint(copy)
    message = caught.value.message
    assert f"shard {shards[0]} is missing" in message
    assert f"{shards[1]} is truncated" in message
    assert f"model.layers.9.extra is in the index, but not in {shards[2]}" in message


def test_a_tensor_that_the_index_does_not_list_is_reported(copy):
    index = json.loads((copy / INDEX).read_text())
    place = index["weight_map"].pop("model.norm.weight")
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=f"model.norm.weight is in {place}, but not in the index"):
        open_checkpoint(copy)


def test_shards_without_an_index_are_refused(copy):
    (copy / INDEX).unlink()
    with pytest.raises(ModelError, match=f"no {INDEX}"):
        open_checkpoint(copy)


def test_one_part_without_an_index_is_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"1 of 2 parts missing: model-00002-of-00002\.saf"):
        read_folder(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 1}', "{}"])
def test_an_index_that_is_none_is_refused(copy, text):
    (copy / INDEX).write_text(text)
    with pytest.raises(ModelError, match="is no safetensors index"):
        open_checkpoint(copy)


def test_an_index_cannot_name_files_elsewhere(copy):
    (copy / INDEX).write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))
    with pytest.raises(ModelError, match="outside its folder"):
        open_checkpoint(copy)


def test_a_missing_or_broken_config_is_refused(copy):
    (copy / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        open_checkpoint(copy)
    (copy / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        open_checkpoint(copy)


def _file(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _entry(dtype: str, shape: list[object], offsets: list[object]) -> dict[str, object]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"[1]", "not an object"),
        (b"{", "damaged header"),
        (b'{"a":1,"a":2}', "occurs twice"),
        ({"w": 1}, "'w' is damaged"),
        (_entry("F4", [2], [0, 8]), "'w' is damaged"),
        (_entry("F32", [-2], [0, 8]), "'w' is damaged"),
        (_entry("F32", [2], [0, "8"]), "'w' is damaged"),
        (_entry("F32", [2], [0, 4]), "has 4 bytes, not 8"),
        (_entry("F32", [1 << 62], [0, 1 << 64]), "truncated"),
        (_entry("F32", [2], [4, 12]), "truncated"),
    ],
)
def test_a_bad_header_is_refused(tmp_path, header, words):
    with pytest.raises(ModelError, match=words):
        read_file(_file(tmp_path / "x.safetensors", header, bytes(8)))


@pytest.mark.parametrize(
    "data", [b"1234", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 99) + b"{}"]
)
def test_a_file_that_is_none_is_refused(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"not a safetensors file|truncated"):
        read_file(tmp_path / "x.safetensors")


@settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=4))
def test_corrupted_headers_raise_nothing_but_model_errors(tmp_path, sharded, changes):
    data = bytearray(next(iter(sorted(sharded.glob("*.safetensors")))).read_bytes())
    for position, value in changes:
        data[position] = value
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(data))
    try:
        read_file(path)
    except ModelError as error:
        assert error.message


def test_an_integer_tensor_is_refused_by_name_and_type(copy):
    index = json.loads((copy / INDEX).read_text())
    place = index["weight_map"]["model.norm.weight"]
    tensors = load_file(copy / place)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, copy / place)
    with pytest.raises(
        ModelError, match=r"'model\.norm\.weight' has type I8, which is not supported"
    ):
        open_checkpoint(copy)
