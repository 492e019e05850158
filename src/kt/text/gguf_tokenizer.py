"""The tokenizer inside a GGUF file: its vocabulary, scores and merges made into a `tokenizers`
Tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from kt.errors import ModelError
from kt.text.description import Description
from kt.text.pre_tokenizers import find_pre_tokenizer

# tokenizer.ggml.token_type
_NORMAL: Final = 1
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4

# Control tokens that end an answer in some model; a file names only one of them as its eos token.
_END_TEXTS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "</s>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
_SPACE: Final = "\u2581"
_TEMPLATE: Final = "tokenizer.chat_template"
_MAX_PIECE: Final = 256
"""Characters of a SentencePiece piece; every way to cut it is tried, and trainers stop at 16."""


def read(metadata: Mapping[str, Any]) -> Description:
    """The tokenizer that `metadata` describes. Raises ModelError."""
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = np.full(len(tokens), _NORMAL)
    if "tokenizer.ggml.token_type" in metadata:
        types = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens))
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(metadata, _vocabulary(tokens))
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(metadata, tokens), True
    else:
        raise ModelError(
            f"tokenizer.ggml.model = {kind!r} is not supported (supported: 'gpt2', 'llama')"
        )
    for number, special in ((_CONTROL, True), (_UNKNOWN, True), (_USER_DEFINED, False)):
        texts = [tokens[index] for index in np.flatnonzero(types == number) if tokens[index]]
        tokenizer.add_tokens(
            [AddedToken(text, special=special, normalized=False) for text in texts]
        )
    special_tokens = _special_tokens(metadata, tokens)
    bos = _token_id(metadata, "bos", len(tokens))
    add_bos = _flag(metadata, "tokenizer.ggml.add_bos_token", add_bos)
    return Description(
        tokenizer=tokenizer,
        eos_ids=_eos_ids(metadata, tokens, types),
        bos_id=bos,
        prefix=(bos,) if add_bos and bos is not None else (),
        special_tokens=special_tokens,
        templates=_templates(metadata),
    )


def _byte_level(metadata: Mapping[str, Any], vocabulary: dict[str, int]) -> tuple[Tokenizer, bool]:
    """A byte-level BPE, and whether its kind puts BOS before a text by default."""
    row = find_pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
    merges = [_pair(merge) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=row.ignore_merges)
    except Exception as error:
        raise ModelError(f"the file's tokenizer is damaged: {error}") from None
    tokenizer = Tokenizer(model)
    if row.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = row.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, row.add_bos


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """SentencePiece's BPE: pieces join in the order of their scores; what is no piece is spelled in
    byte tokens.
    """
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens)).astype(np.float64)
    vocabulary = _vocabulary(tokens)
    unknown = _token_id(metadata, "unknown", len(tokens))
    model = models.BPE(
        vocabulary,
        _score_merges(vocabulary, scores),
        unk_token=tokens[unknown] if unknown is not None else None,
        fuse_unk=True,
        byte_fallback="<0x00>" in vocabulary,
    )
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", _SPACE)
    prefix = _flag(metadata, "tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), replace] if prefix else [replace]
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _score_merges(
    vocabulary: Mapping[str, int], scores: np.ndarray[Any, Any]
) -> list[tuple[str, str]]:
    """All ways to join two pieces into a third, best score of the result first, then by the pieces'
    ids.
    """
    ranked: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for piece, index in vocabulary.items():
        if len(piece) > _MAX_PIECE:
            raise ModelError(
                f"token {index} has {len(piece)} characters (at most {_MAX_PIECE} are supported)"
            )
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                rank = (-scores[index], index, vocabulary[left], vocabulary[right])
                ranked.append((*rank, (left, right)))
    ranked.sort()
    return [row[-1] for row in ranked]


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    """Text -> id. A text that occurs again gets a spelling of its own, so that ids stay."""
    vocabulary: dict[str, int] = {}
    for index, text in enumerate(tokens):
        vocabulary[text if text not in vocabulary else f"\ufdef{index}"] = index
    return vocabulary


def _pair(merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator:
        raise ModelError(f"tokenizer.ggml.merges: {merge[:40]!r} is not a pair")
    return left, right


def _eos_ids(metadata: Mapping[str, Any], tokens: Sequence[str], types: Any) -> frozenset[int]:
    named = {_token_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")}
    control = np.flatnonzero(types == _CONTROL).tolist()
    named.update(index for index in control if tokens[index] in _END_TEXTS)
    return frozenset(index for index in named if index is not None)


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {name: _token_id(metadata, key, len(tokens)) for key, name in names.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None}


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < count:
        raise ModelError(
            f"tokenizer.ggml.{name}_token_id = {value!r} is not an id (there are {count})"
        )
    return value


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The file's templates; further ones are called tokenizer.chat_template.NAME."""
    found = {
        key: value
        for key, value in metadata.items()
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
    }
    for key, value in found.items():
        if not isinstance(value, str):
            raise ModelError(f"{key} = {str(value)[:80]} is not a text")
    return {
        "default" if key == _TEMPLATE else key.removeprefix(f"{_TEMPLATE}."): value
        for key, value in found.items()
    }


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        raise ModelError(f"the file has no tokenizer: {key} is missing")
    if not isinstance(value, list):
        raise ModelError(f"{key} = {str(value)[:80]} is not a list of texts")
    return value


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray[Any, Any]:
    """One number for every token."""
    value = metadata.get(key)
    if not isinstance(value, np.ndarray) or value.shape != (count,) or value.dtype == bool:
        raise ModelError(f"{key} does not hold {count} numbers")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{key} = {str(value)[:80]} is neither true nor false")
    return value
