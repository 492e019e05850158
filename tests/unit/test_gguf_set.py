"""Split GGUF files and folders of them."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from kt.errors import ModelError, UsageError
from kt.weights.checkpoint import open_checkpoint
from kt.weights.gguf_set import GgufSet, find_gguf
from tests.tiny import finish, tiny_gguf

COUNT = 3


def _part(
    folder: Path, number: int, *, names: tuple[str, ...], total: int = 4, no: int | None = None
) -> Path:
    path = folder / f"m-Q8-{number + 1:05d}-of-{COUNT:05d}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", number if no is None else no)
    writer.add_uint16("split.count", COUNT)
    writer.add_int32("split.tensors.count", total)
    writer.add_uint32("only.in", number)
    for name in names:
        writer.add_tensor(name, np.full(4, number, dtype=np.float32))
    return finish(writer, path)


@pytest.fixture
def split(tmp_path):
    for number, names in enumerate((("a", "b"), ("c",), ("d",))):
        _part(tmp_path, number, names=names)
    return tmp_path


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_opens_the_set(split, number):
    files = GgufSet(split / f"m-Q8-{number:05d}-of-00003.gguf")
    assert set(files.tensors) == {"a", "b", "c", "d"}
    assert files.tensors["c"].data.view("<f4").tolist() == [1.0] * 4
    assert files.metadata["only.in"] == 0  # the first part's metadata, whichever was named


def test_a_missing_part_is_named(split):
    (split / "m-Q8-00002-of-00003.gguf").unlink()
    for number in (1, 3):
        with pytest.raises(ModelError, match=r"1 of 3 parts missing: m-Q8-00002-of-00003\.gguf"):
            GgufSet(split / f"m-Q8-{number:05d}-of-00003.gguf")


def test_a_part_under_another_name_is_refused(split):
    shutil.move(split / "m-Q8-00001-of-00003.gguf", split / "first.gguf")
    with pytest.raises(ModelError, match="one of 3 parts"):
        GgufSet(split / "first.gguf")


def test_swapped_parts_are_refused(split):
    _part(split, 1, names=("c",), no=2)
    with pytest.raises(ModelError, match="should be part 2 of 3, but says it is part 3 of 3"):
        GgufSet(split / "m-Q8-00001-of-00003.gguf")


@pytest.mark.parametrize("key", ["split.no", "split.count"])
@pytest.mark.parametrize("value", ["one", ["a"], 1.5])
def test_numbers_of_parts_are_whole_numbers(split, key, value):
    path = split / "m-Q8-00002-of-00003.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_key_value("split.no", 1, gguf.GGUFValueType.UINT16)
    writer.add_key_value("split.count", COUNT, gguf.GGUFValueType.UINT16)
    kinds = {str: gguf.GGUFValueType.STRING, list: gguf.GGUFValueType.ARRAY}
    writer.kv_data[0].pop(key)
    writer.add_key_value(key, value, kinds.get(type(value), gguf.GGUFValueType.FLOAT32))
    writer.add_tensor("c", np.zeros(4, np.float32))
    finish(writer, path)
    with pytest.raises(ModelError, match=rf"{key} = .* is not a whole number"):
        GgufSet(split / "m-Q8-00002-of-00003.gguf")


def test_parts_of_different_conversions_are_refused(split):
    _part(split, 2, names=("c",))
    with pytest.raises(ModelError, match="'c' is in an earlier part too"):
        GgufSet(split / "m-Q8-00001-of-00003.gguf")
    _part(split, 2, names=("d", "e"))
    with pytest.raises(ModelError, match=r"hold 5 tensors, split\.tensors\.count says 4"):
        GgufSet(split / "m-Q8-00001-of-00003.gguf")


def test_a_folder_with_one_set_opens_it(split, tmp_path_factory):
    assert find_gguf(split) == split / "m-Q8-00001-of-00003.gguf"
    folder = tmp_path_factory.mktemp("one")
    tiny_gguf(folder / "model.gguf", num_hidden_layers=1)
    shutil.copy(folder / "model.gguf", folder / "mmproj-model.gguf")
    assert open_checkpoint(folder).path == folder / "model.gguf"


def test_two_quantizations_in_a_folder_are_the_users_choice(split):
    tiny_gguf(split / "m-Q4.gguf", num_hidden_layers=1)
    with pytest.raises(UsageError, match=r"2 GGUF models: m-Q4\.gguf, m-Q8-00001-of-00003\.gguf"):
        open_checkpoint(split)
