"""How byte-level vocabularies cut text into words before merging, by the names of
tokenizer.ggml.pre.

The patterns are those of the tokenizers that the models were trained with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from kt.errors import ModelError

_ENGLISH: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION: Final = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK: Final = (
    _ASCII_PUNCTUATION
    + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizerRow:
    """names: values of tokenizer.ggml.pre. patterns: applied one after the other, each cutting what
    the last left.

    ignore_merges: a word that is a token is taken whole. nfc: text is composed first. add_bos: BOS
    by default.
    """

    names: frozenset[str]
    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False

    def build(self) -> PreTokenizer:
        """The cuts, then bytes in the printable alphabet."""
        cuts: list[PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, byte_level])


PRE_TOKENIZERS: Final = (
    PreTokenizerRow(
        frozenset({"llama-bpe", "llama3", "llama-v3"}),
        (_ENGLISH + r"|\p{N}{1,3}|" + _REST,),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizerRow(
        frozenset({"qwen2", "deepseek-r1-qwen", "megrez"}),
        (_ENGLISH + r"|\p{N}|" + _REST,),
        nfc=True,
    ),
    PreTokenizerRow(
        frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"}), (r"\p{N}", _GPT2)
    ),
    PreTokenizerRow(frozenset({"gpt-2", "phi-2", "olmo", "mpt"}), (_GPT2,)),
    PreTokenizerRow(
        frozenset({"deepseek-v3"}),
        (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK),
    ),
    PreTokenizerRow(
        frozenset({"default"}),
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
)


def find_pre_tokenizer(name: object) -> PreTokenizerRow:
    """The row for a value of tokenizer.ggml.pre; files without one mean "default". Raises
    ModelError.
    """
    wanted = "default" if name is None else name
    for row in PRE_TOKENIZERS:
        if wanted in row.names:
            return row
    supported = ", ".join(sorted(name for row in PRE_TOKENIZERS for name in row.names))
    raise ModelError(f"tokenizer.ggml.pre = {name!r} is not supported (supported: {supported})")
