"""Tokenizers built from GGUF metadata, against the tokenizers they stand for."""

import json
import random
import time

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

from kt.errors import ModelError
from kt.text import gguf_tokenizer
from kt.tokenizer import Tokenizer
from tests.texts import CORPUS, streamed

# -----------------------------------------------------------------------------------------------


def _pieces(pre_tokenizer, text):
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


def _row(name):
    return gguf_tokenizer.find_pre_tokenizer(name)


@pytest.mark.parametrize("text", CORPUS)
def test_words_are_cut_as_the_models_own_tokenizers_do(text):
    qwen = transformers.Qwen2Tokenizer(vocab={"a": 0}, merges=[])._tokenizer
    assert _pieces(_row("qwen2").build(), text) == _pieces(qwen.pre_tokenizer, text)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert _pieces(_row("gpt-2").build(), text) == _pieces(gpt2, text)
    # HuggingFaceTB/SmolLM2's tokenizer.json
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if not any(
        digit in text for digit in "\u0661\u0662\u0663"
    ):  # Digits cuts more numerals than \p{N}
        assert _pieces(_row("smollm").build(), text) == _pieces(smollm, text)


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        ("llama-bpe", "12345 don't", ["123", "45", "Ġdon", "'t"]),
        ("llama-bpe", "a\n\n b", ["a", "ĊĊ", "Ġb"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("deepseek-v3", "12345 .x a.x", ["123", "45", "Ġ.", "x", "Ġa", ".x"]),
        ("deepseek-v3", "漢字kana", ["æ¼¢åŃĹ", "kana"]),
        ("default", "a$b 12345", ["a", "$", "b", "Ġ", "123", "45"]),
    ],
)
def test_words_are_cut_as_the_patterns_say(name, text, want):
    assert _pieces(_row(name).build(), text) == want


def _metadata(**changes):
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<|im_end|>"],
        "tokenizer.ggml.token_type": np.array([1, 1, 1, 3], dtype=np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 3,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "my-own"}, "tokenizer.ggml.pre = 'my-own' is not supported .supported: codeshell"),
        ({"model": "t5"}, "tokenizer.ggml.model = 't5' is not supported"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, "'ab' is not a pair"),
        ({"merges": ["a x"]}, "tokenizer is damaged"),
        ({"token_type": np.array([1])}, "token_type does not hold 4"),
        ({"eos_token_id": 4}, "eos_token_id = 4 is not an id"),
        ({"model": "llama"}, "scores does not hold 4"),
        ({"model": "llama", "scores": ["a", "b", "c", "d"]}, "scores does not hold 4"),
        ({"token_type": ["a", "b", "c", "d"]}, "token_type does not hold 4"),
        ({"token_type": 3}, "token_type does not hold 4"),
        ({"tokens": 5}, "tokens = 5 is not a list of texts"),
        ({"add_bos_token": np.array([1, 2])}, "add_bos_token .* neither true nor false"),
        ({"add_bos_token": "yes"}, "add_bos_token = yes is neither true nor false"),
    ],
)
def test_a_bad_vocabulary_is_refused(changes, words):
    with pytest.raises(ModelError, match=words):
        gguf_tokenizer.read(_metadata(**changes))


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "tokenizer.chat_template.tools"])
def test_a_template_that_is_no_text_is_refused(key):
    with pytest.raises(ModelError, match=rf"{key} = 5 is not a text"):
        gguf_tokenizer.read({**_metadata(), key: 5})


def test_a_piece_as_long_as_a_book_is_refused_and_not_cut_in_every_way():
    tokens = [letter * 60_000 for letter in "abcdefgh"]
    scores = np.zeros(8, np.float32)
    types = np.ones(8, np.int32)
    changed = _metadata(model="llama", tokens=tokens, scores=scores, token_type=types)
    started = time.monotonic()
    with pytest.raises(ModelError, match="token 0 has 60000 characters"):
        gguf_tokenizer.read(changed)
    assert time.monotonic() - started < 1


def test_two_tokens_of_one_spelling_keep_their_ids():
    made = Tokenizer(
        gguf_tokenizer.read(_metadata(tokens=["a", "b", "b", "<|im_end|>"], merges=[]))
    )
    assert made.encode("ab<|im_end|>", special=True) == [0, 1, 3]
    assert made.vocab_size == 4


def test_user_defined_tokens_are_recognised_always_and_control_tokens_only_on_request():
    tokens = ["a", "b", "<think>", "<|im_end|>"]
    types = np.array([1, 1, 4, 3], dtype=np.int32)
    made = Tokenizer(gguf_tokenizer.read(_metadata(tokens=tokens, token_type=types, merges=[])))
    assert made.encode("a<think>b") == [0, 2, 1]
    assert made.encode("a<|im_end|>", special=True) == [0, 3]
    assert 3 not in made.encode("a<|im_end|>")


@pytest.mark.parametrize(
    ("pre", "flag", "want"),
    [
        ("llama-bpe", None, [1, 0]),
        ("llama-bpe", False, [0]),
        ("qwen2", None, [0]),
        ("qwen2", True, [1, 0]),
    ],
)
def test_bos_is_put_in_front_where_the_file_or_its_kind_says(pre, flag, want):
    changes = {"bos_token_id": 1, "pre": pre} | ({} if flag is None else {"add_bos_token": flag})
    assert Tokenizer(gguf_tokenizer.read(_metadata(**changes))).encode("a") == want


def _sentencepiece_vocabulary():
    """A vocabulary as SentencePiece trains them: byte tokens, scored pieces, single characters."""
    words = "the quick brown fox jumps over the lazy dog and the other one jumps too".split()
    pieces = sorted(
        {("\u2581" + word)[i:j] for word in words for i in range(6) for j in range(i + 2, i + 7)}
        - {""}
    )
    random.Random(3).shuffle(pieces)
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    pieces = [piece for piece in pieces if len(piece) > 1]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *pieces,
        *letters,
    ]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) + len(letters))]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) + len(letters))]
    return tokens, scores, types


@pytest.fixture(scope="module")
def sentencepiece():
    """Ours from GGUF metadata, and the same vocabulary in the form of Llama 2's tokenizer.json."""
    from transformers.tokenization_utils_base import generate_merges

    tokens, scores, types = _sentencepiece_vocabulary()
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
        "tokenizer.ggml.token_type": np.array(types, dtype=np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    vocabulary = {token: index for index, token in enumerate(tokens)}
    ranks = {token: scores[index] for token, index in vocabulary.items() if types[index] == 1}
    made = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            generate_merges(vocabulary, ranks),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    state = json.loads(made.to_str())
    state["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
    state["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    oracle = tokenizers.Tokenizer.from_str(json.dumps(state))
    oracle.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(gguf_tokenizer.read(metadata)), oracle


@pytest.mark.parametrize(
    "text", [*CORPUS[1:], "the quick fox", "thedog</s> jumps over", "👍 the other 👎"]
)
def test_a_sentencepiece_vocabulary_equals_the_tokenizers_librarys(sentencepiece, text):
    ours, oracle = sentencepiece
    want = oracle.encode(text).ids
    assert ours.encode(text, special=True) == [1, *want]
    assert ours.decode(want) == oracle.decode(want)
    assert "".join(streamed(ours, want)) == oracle.decode(want)


def test_byte_tokens_never_show_half_a_character(sentencepiece):
    ours, _ = sentencepiece
    ids = ours.encode("fox 😀", add_bos=False)
    pieces = streamed(ours, ids)
    assert ids[-4:] == [3 + byte for byte in "😀".encode()]
    assert pieces[-5:] == ["", "", "", "😀", ""]
    assert "".join(pieces) == "fox 😀"
