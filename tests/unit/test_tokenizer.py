"""Ids and text against transformers, from Hugging Face files."""

from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kt.errors import ModelError
from kt.text import hf_tokenizer
from kt.tokenizer import Tokenizer, load
from kt.weights.checkpoint import open_checkpoint
from tests.texts import CORPUS
from tests.tiny import tiny_gguf, tiny_llama, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def ours(folder) -> Tokenizer:
    return Tokenizer(hf_tokenizer.read(folder, {}))


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", CORPUS)
def test_ids_equal_transformers(ours, theirs, text):
    assert ours.encode(text, special=True) == theirs.encode(text)
    assert ours.encode(text) == theirs.encode(text, split_special_tokens=True)


@pytest.mark.parametrize("text", CORPUS)
def test_text_equals_transformers(ours, theirs, text):
    ids = theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(ours, theirs, text):
    ids = ours.encode(text)
    assert ids == theirs.encode(text, split_special_tokens=True)
    assert ours.decode(ids, skip_special=False) == text


def test_a_gguf_holds_the_same_tokenizer(ours, tmp_path):
    found = load(open_checkpoint(tiny_gguf(tmp_path / "x.gguf", num_hidden_layers=1)))
    for text in CORPUS:
        assert found.encode(text) == ours.encode(text)
        assert found.encode(text, special=True) == ours.encode(text, special=True)
    messages = [{"role": "user", "content": "the fox <|im_end|>"}]
    assert found.encode_chat(messages) == ours.encode_chat(messages)
    assert (found.bos_id, found.vocab_size) == (ours.bos_id, ours.vocab_size)
    assert found.eos_ids == {0, 2}  # its own <|im_end|>, and <|endoftext|> ends an answer anywhere


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    tiny_llama(tmp_path, num_hidden_layers=1)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        load(open_checkpoint(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist"):
        load(open_checkpoint(tmp_path))


MODEL = Path(__file__).parents[2] / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

SKY_IDS = "1 4093 198 36971 281 582 8510 1701 260 6376 314 4461 30 2 198 1 520 9531 198"


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("def fibonacci(n):", [1604, 3987, 46477, 24, 94, 727]),
        (
            "<|im_start|>user\nExplain in one paragraph why the sky is blue.<|im_end|>\n"
            "<|im_start|>assistant\n",
            list(map(int, SKY_IDS.split())),
        ),
    ],
)
def test_smollm2s_ids_equal_llama_cpps(prompt, ids):
    made = load(open_checkpoint(MODEL))
    assert made.encode(prompt, special=True) == ids
    assert made.decode(ids, skip_special=False) == prompt
