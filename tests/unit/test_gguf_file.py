"""The GGUF reader: the same as the gguf package on good files, one clear error on bad ones."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kt.errors import ModelError
from kt.models.families import spec
from kt.tokenizer import load
from kt.weights.checkpoint import open_checkpoint
from kt.weights.gguf_file import GgufFile
from tests.tiny import finish, tiny_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", num_hidden_layers=1)


def _small(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_int32("a.i32", -(1 << 31))
    writer.add_uint64("a.u64", (1 << 64) - 1)
    writer.add_int64("a.i64", -(1 << 63))
    writer.add_float64("a.f64", 1e300)
    writer.add_float32("a.f32", 0.5)
    writer.add_bool("a.yes", True)
    writer.add_array("a.words", ["", "é", "\u2581x"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("v", np.arange(5, dtype=np.float16))
    return finish(writer, path)


def test_metadata_and_tensors_equal_the_gguf_packages(tmp_path):
    path = _small(tmp_path / "small.gguf")
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    found = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in ours.metadata.items()}
    assert found == fields
    assert len(found) == 13
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.encoding.id == tensor.tensor_type
        assert mine.data.tobytes() == tensor.data.tobytes()
        assert not mine.data.flags.writeable


def test_quantized_tensors_equal_the_gguf_packages(path):
    ours = GgufFile(path)
    for tensor in gguf.GGUFReader(path).tensors:
        assert ours.tensors[tensor.name].data.tobytes() == tensor.data.tobytes()


def _file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"GG", "truncated"),
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 64) - 1), "truncated"),
    ],
)
def test_a_bad_header_is_refused(tmp_path, data, words):
    with pytest.raises(ModelError, match=words):
        GgufFile(_file(tmp_path, data))


def _entry(key: bytes, kind: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + payload


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([_entry(b"k", 99, b"")], "'k' has unknown value type 99"),
        ([_entry(b"k", 8, struct.pack("<Q", 1 << 63) + b"x")], "truncated"),
        ([_entry(b"k", 9, struct.pack("<IQ", 8, 1 << 60))], "truncated"),
        ([_entry(b"k", 9, struct.pack("<IQ", 4, 1 << 61) + bytes(64))], "truncated"),
        ([_entry(b"k", 9, struct.pack("<IQ", 9, 1) + bytes(64))], "unknown value type 9"),
        ([_entry(b"k", 8, struct.pack("<Q", 1) + b"\xff")], "not UTF-8"),
        ([_entry(b"k", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")], "entry 0 is not a UTF-8"),
        ([_entry(b"k", 4, bytes(4)), _entry(b"k", 4, bytes(4))], "'k' occurs twice"),
        ([_entry(b"general.alignment", 4, struct.pack("<I", 0))], "alignment = 0"),
        ([_entry(b"general.alignment", 4, struct.pack("<I", 48))], "alignment = 48"),
    ],
)
def test_bad_metadata_is_refused(tmp_path, entries, words):
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)
    with pytest.raises(ModelError, match=words):
        GgufFile(_file(tmp_path, data))


def _row(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    head = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([_row(b"w", (4,), 31, 0)], "'w' has type number 31"),
        ([_row(b"w", (4,), 0, 8)], "offset 8 is not a multiple of 32"),
        ([_row(b"w", (1 << 40,), 0, 0)], "truncated: tensor 'w'"),
        ([_row(b"w", (1 << 63, 1 << 63), 0, 0)], "truncated: tensor 'w'"),
        ([_row(b"w", (4,), 0, 1 << 62)], "truncated: tensor 'w'"),
        ([_row(b"w", (33,), 2, 0)], "'w' .Q4_0.: rows of 33"),
        ([_row(b"w", (4, 0), 0, 0)], "'w' has shape"),
        ([_row(b"w", (1, 1, 1, 1, 1), 0, 0)], "'w' has 5 dimensions"),
        ([_row(b"w", (4,), 0, 0), _row(b"w", (4,), 0, 32)], "'w' occurs twice"),
    ],
)
def test_a_bad_tensor_table_is_refused(tmp_path, rows, words):
    data = b"GGUF" + struct.pack("<IQQ", 3, len(rows), 0) + b"".join(rows) + bytes(256)
    with pytest.raises(ModelError, match=words):
        GgufFile(_file(tmp_path, data))


def test_a_file_cut_anywhere_is_refused(path, tmp_path):
    data = path.read_bytes()
    for size in [*range(0, 400, 7), *range(400, len(data) - 1, len(data) // 40), len(data) - 33]:
        with pytest.raises(ModelError, match=r"truncated|is empty"):
            GgufFile(_file(tmp_path, data[:size]))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        open_checkpoint(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="neither"):
        open_checkpoint(tmp_path)


@settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), min_size=1, max_size=6),
    st.booleans(),
)
def test_corrupted_bytes_raise_nothing_but_model_errors(tmp_path, path, changes, early):
    data = bytearray(path.read_bytes())
    for position, value in changes:
        data[position % (9000 if early else len(data))] = value
    try:
        found = open_checkpoint(_file(tmp_path, bytes(data)))
        spec(found)
        load(found)
    except ModelError as error:
        assert error.message


@settings(
    max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic_raise_nothing_but_model_errors(tmp_path, tail):
    try:
        GgufFile(_file(tmp_path, b"GGUF\x03\x00\x00\x00" + tail))
    except ModelError as error:
        assert error.message
