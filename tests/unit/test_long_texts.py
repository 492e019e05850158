"""Long texts are tokenised in pieces: same ids, little memory, and other threads run on."""

import random
import subprocess
import sys
import threading
import time
from functools import cache

import pytest
import tokenizers
from tokenizers import models, trainers

from kt.text import hf_tokenizer, pieces
from kt.text.control_text import ControlText
from kt.text.pieces import TextTooLong, encode_long
from kt.text.pre_tokenizers import PRE_TOKENIZERS
from kt.tokenizer import Tokenizer
from tests.texts import CORPUS
from tests.tiny import tiny_tokenizer

FLAVOURS = {
    "words": ["the", "quick", "brown", "it's", "don't", "fox", "étude", "I"],
    "code": ["x = f(y)\n", "    ", "return", "{", "}", ");\n", "\n\n", "0x1F", "_a1"],
    "json": ['{"a":', "1234", '"text"', ",", "[", "]", "-1.5e3", "null"],
    "numbers": ["1", "22", "333", " ", "4444", ".", "\n"],
    "chinese": ["日本語", "テキスト", "。", "中文", "，", "字符", "한국어"],
    "mixed": list(CORPUS),
}


def _text(flavour: str, size: int) -> str:
    rng, words, parts = random.Random(flavour), FLAVOURS[flavour], []
    while size > 0:
        parts.append(rng.choice(words) + (" " if flavour == "words" or rng.random() < 0.2 else ""))
        size -= len(parts[-1])
    return "".join(parts)


@cache
def _trained(row) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=row.ignore_merges))
    made.pre_tokenizer = row.build()
    if row.nfc:
        made.normalizer = tokenizers.normalizers.NFC()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=["<|im_end|>"]
    )
    made.train_from_iterator([_text(flavour, 4000) for flavour in FLAVOURS], trainer)
    return made


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("row", PRE_TOKENIZERS, ids=lambda row: min(row.names))
def test_ids_are_those_of_the_whole(monkeypatch, row, flavour):
    monkeypatch.setattr(pieces, "PIECE", 2048)
    made, text = _trained(row), _text(flavour, 30_000)
    cuts = []

    def encode(part: str) -> list[int]:
        cuts.append(len(part))
        return made.encode(part, add_special_tokens=False).ids

    assert encode_long(encode, text) == made.encode(text, add_special_tokens=False).ids
    assert max(cuts) <= 2048


@pytest.mark.parametrize("prefix", [True, False])
def test_a_space_before_every_text_is_put_there_once(monkeypatch, prefix):
    monkeypatch.setattr(pieces, "PIECE", 2048)
    steps = [tokenizers.normalizers.Replace(" ", "\u2581")]
    if prefix:
        steps.insert(0, tokenizers.normalizers.Prepend("\u2581"))
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = tokenizers.normalizers.Sequence(steps)
    made.train_from_iterator(
        FLAVOURS["words"] * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=["\u2581"])
    )
    text = _text("words", 20_000)
    ids = encode_long(lambda part: made.encode(part, add_special_tokens=False).ids, text)
    assert ids == made.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_special_tokens_are_never_cut(monkeypatch, folder):
    made = Tokenizer(hf_tokenizer.read(folder, {}))
    text = "a<|im_end|>b c<|im_start|>" * 900 + "x" * 3000 + "<|im_end|>" * 900
    want = made.encode(text, special=True)
    monkeypatch.setattr(pieces, "PIECE", 1000)
    assert made.encode(text, special=True) == want
    assert want.count(made.special_ids["<|im_end|>"]) == 1800


def test_special_tokens_are_found_across_the_steps_of_the_search(monkeypatch, folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    control = ControlText(tokenizer)
    text = "".join("<|im_end|>" + "y" * n for n in range(40))
    want = control.seal(text)
    monkeypatch.setattr("kt.text.control_text._STEP", 7)
    assert control.seal(text) == want
    assert want.count("\ufdef") == 80


def test_counting_stops_at_the_limit(folder):
    made = Tokenizer(hf_tokenizer.read(folder, {}))
    text = "hello world " * 300_000
    started = time.monotonic()
    with pytest.raises(TextTooLong, match=r"\d+ tokens or more, .* holds 100"):
        made.encode(text, limit=100)
    messages = [{"role": "user", "content": text}]
    with pytest.raises(TextTooLong):
        made.encode_chat(messages, limit=100)
    assert time.monotonic() - started < 2
    assert len(made.encode("hello world", limit=100)) <= 100


@pytest.mark.parametrize("text", ["hello world ", "<|im_", "9"])
def test_other_threads_run_meanwhile(folder, text):
    made = Tokenizer(hf_tokenizer.read(folder, {}))
    long, gaps, done = text * (2_000_000 // len(text)), [], threading.Event()

    def beat() -> None:
        last = time.monotonic()
        while not done.wait(0.005):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    thread = threading.Thread(target=beat)
    thread.start()
    made.encode_chat([{"role": "user", "content": long}])
    done.set()
    thread.join()
    assert max(gaps) < 0.5  # some tens of milliseconds on an idle machine


def test_memory_does_not_grow_with_the_text(folder):
    code = f"""
import resource, pathlib
from kt.text import hf_tokenizer
from kt.tokenizer import Tokenizer
made = Tokenizer(hf_tokenizer.read(pathlib.Path({str(folder)!r}), {{}}))
made.encode("hello " * 20000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made.encode("hello world " * 330_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(grown.stdout) < 200_000  # KiB, for 4 MB of text
