"""A model's files that are no files, have names that cannot be, or get shorter meanwhile."""

import os
import subprocess
import sys

import pytest

from kt.errors import ModelError
from kt.text import hf_tokenizer
from kt.weights.checkpoint import open_checkpoint, read_json
from kt.weights.dequantize import dequantize
from kt.weights.files import map_file, read_bytes
from tests.tiny import tiny_gguf, tiny_llama, tiny_tokenizer


@pytest.fixture
def folder(tmp_path):
    return tiny_llama(tmp_path / "model")


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        for read in (map_file, read_bytes, read_json):
            with pytest.raises(ModelError, match="is not a regular file"):
                read(path)
    for path in (pipe, "/dev/zero", "/dev/null"):
        with pytest.raises(ModelError, match="is not a regular file"):
            open_checkpoint(type(tmp_path)(path))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_a_folder_is_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match=f"{name} is not a regular file"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"],
)
def test_a_pipe_among_the_tokenizers_files_is_not_waited_for(tmp_path, name):
    folder = tiny_tokenizer(tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match=f"{name} is not a regular file"):
        hf_tokenizer.read(folder, {})


def test_names_that_are_too_long(tmp_path, folder):
    with pytest.raises(ModelError, match="does not exist"):
        open_checkpoint(tmp_path / ("a" * 5000))
    index = '{"weight_map": {"x": "' + "y" * 5000 + '"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"shard y+ is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("make", [tiny_llama, lambda path: tiny_gguf(path / "m.gguf")])
def test_a_file_that_gets_shorter_is_told_before_its_map_is_touched(tmp_path, make):
    made = make(tmp_path)
    path = made if made.is_file() else made / "model.safetensors"
    checkpoint = open_checkpoint(made)
    tensor = checkpoint.tensor("embed")
    dequantize(tensor)
    tensor.rows(3, 9).check_length()
    os.truncate(path, path.stat().st_size - 1)
    words = "has become shorter while it was read"
    with pytest.raises(ModelError, match=f"{tensor.name} {words}"):
        dequantize(tensor)
    with pytest.raises(ModelError, match=words):
        tensor.rows(3, 9).check_length()


def test_a_file_that_is_cut_while_its_map_is_read_ends_the_process_in_words(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x" * (1 << 20))
    code = (
        "import os, pathlib\n"
        "from kt.weights.files import map_file\n"
        f"path = pathlib.Path({str(path)!r})\n"
        "data = map_file(path)\n"
        "os.truncate(path, 10)\n"
        "print(data[1 << 19])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ModelError.exit_code, "")
    assert "became shorter while it was in use" in done.stderr
