"""Text in pieces: never half a character, together the whole text."""

from pathlib import Path

import pytest

from kt.text import hf_tokenizer
from kt.tokenizer import Tokenizer
from tests.texts import CORPUS, streamed
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def ours(folder) -> Tokenizer:
    return Tokenizer(hf_tokenizer.read(folder, {}))


# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", CORPUS)
def test_text_in_pieces_is_the_whole_text(ours, text):
    ids = ours.encode(text)
    pieces = streamed(ours, ids)
    assert "".join(pieces) == ours.decode(ids) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_an_emoji_over_several_tokens_comes_at_once(ours):
    ids = ours.encode("😀")
    assert len(ids) == 4
    assert streamed(ours, ids) == ["", "", "", "😀", ""]
    assert streamed(ours, ids[:3]) == ["", "", "", ""]  # half a character is never shown
    assert streamed(ours, [ids[0], 2, *ids[1:]])[-2] == "😀"  # a skipped token does not tear it


def test_ids_without_text_are_empty(ours):
    detokenizer = ours.detokenizer()
    # Ids beyond the vocabulary exist: embeddings are padded.
    assert [detokenizer.push(id_) for id_ in (ours.vocab_size, 10**6, -1, 0)] == [""] * 4
    assert ours.detokenizer(skip_special=False).push(2) == "<|im_end|>"
