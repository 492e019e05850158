"""Weights that are no numbers: the layer and the tensor are named."""

import gguf
import numpy as np
import pytest

from kt.engine.launch import launch, prepare
from kt.errors import ModelError, NotFinite
from kt.machine.survey import survey
from tests.executors import NATIVE, all_logits, executor
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen3_moe_gguf

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def _spoil(path, name, value, *, at=0):
    """Makes the scale of a block, or a float, of tensor `name` no number."""
    found = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    kind = np.float32 if found.tensor_type.name == "F32" else np.float16
    with path.open("r+b") as file:
        file.seek(int(found.data_offset) + at)
        file.write(kind(value).tobytes())


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("token_embd.weight", ""),
        ("blk.0.attn_q.weight", "layers.0"),
        ("blk.1.attn_norm.weight", "layers.1"),
        ("blk.1.ffn_down.weight", "layers.1"),
        ("output_norm.weight", ""),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_tensor_is_named(tmp_path, name, layer, value):
    path = tiny_gguf(tmp_path / "m.gguf")
    _spoil(path, name, value)
    made = executor(path, NATIVE[0])
    try:
        ids = [0, *IDS]  # row 0 of the embeddings is the spoilt one
        with pytest.raises(NotFinite, match=rf"tensor {name} holds numbers") as caught:
            all_logits(made, ids)
        assert layer in caught.value.message
    finally:
        made.close()


def test_experts_are_among_the_tensors(tmp_path):
    path = tiny_qwen3_moe_gguf(tmp_path / "m.gguf")
    for at in range(0, 64, 2):
        _spoil(path, "blk.1.ffn_down_exps.weight", np.nan, at=at)
    made = executor(path, NATIVE[0])
    try:
        with pytest.raises(NotFinite, match=r"tensor blk\.1\.ffn_down_exps.* layers\.1"):
            all_logits(made, list(range(200)))
    finally:
        made.close()


def test_a_load_ends_with_the_files_fault(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf")
    _spoil(path, "blk.0.attn_k.weight", np.nan)
    with pytest.raises(ModelError, match=r"tensor blk\.0\.attn_k\.weight holds numbers"):
        launch(prepare(path, survey(gpus=False), name="m", context=64, max_batch=2))


def test_a_tokenizer_of_a_larger_model_is_refused(tmp_path):
    path = tiny_llama(tmp_path, vocab_size=300)
    with pytest.raises(ModelError, match=r"tokenizer has ids up to \d+, .* ends at 299"):
        launch(prepare(path, survey(gpus=False), name="m", context=64, max_batch=2))
