"""Token ids to text, one at a time, never half a character.

Tokens are bytes: byte-level vocabularies spell them in a printable alphabet (GPT-2's),
SentencePiece ones have byte tokens <0x00> ... <0xFF>. A character's bytes may come in several
tokens, so bytes are held back until it is whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any, Final

from tokenizers import Tokenizer

from kt.errors import ModelError

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\u2581"  # SentencePiece's visible space


class TokenBytes:
    """The bytes of every token of a tokenizer, found once per token.

    strips_space: decoding drops one space at the very start (SentencePiece puts one before the
    first word).
    """

    def __init__(
        self, tokenizer: Tokenizer, size: int, added: dict[int, str], special: frozenset[int]
    ) -> None:
        """size: ids below it are tokens; added: id -> text of those that stand for themselves;
        special: those left out of an answer. Raises ModelError for a way of spelling that kt does
        not know.
        """
        self._tokenizer = tokenizer
        self._size = size
        self._added = added
        self._special = special
        self._cache: dict[int, bytes] = {}
        self._spell, self.strips_space = _decoder(tokenizer)

    def __call__(self, token: int, *, skip_special: bool) -> bytes:
        """Bytes of `token`; nothing for a skipped or unknown one."""
        if skip_special and token in self._special:
            return b""
        known = self._cache.get(token)
        if known is None:
            known = self._cache[token] = self._find(token)
        return known

    def _find(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text = self._tokenizer.id_to_token(token) if 0 <= token < self._size else None
        return self._spell(text) if text is not None else b""


class Detokenizer:
    """Text of a growing list of tokens. Bytes of an unfinished character are held back, and dropped
    at the end.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        skip_special: bool = True,
        keep: frozenset[int] = frozenset(),
    ) -> None:
        """keep: special tokens that are not skipped."""
        self._token_bytes = token_bytes
        self._skip_special = skip_special
        self._keep = keep
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = token_bytes.strips_space

    def push(self, token: int) -> str:
        """The text that `token` completes, often ""."""
        skip = self._skip_special and token not in self._keep
        text = self._decoder.decode(self._token_bytes(token, skip_special=skip))
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """The end of the text. What is still held back is half a character, so there is nothing to
        add.
        """
        self._decoder.reset()
        return ""


def _decoder(tokenizer: Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How tokens spell bytes, and whether a leading space is dropped. Raises ModelError."""
    state: Any = {"type": "none"}
    if tokenizer.decoder is not None:
        state = json.loads(tokenizer.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _spell_byte_level, False
    if "Metaspace" in kinds:
        return _spell_sentencepiece, steps[kinds.index("Metaspace")].get(
            "prepend_scheme"
        ) != "never"
    if "ByteFallback" in kinds:
        strip = any(step["type"] == "Strip" and step["start"] > 0 for step in steps)
        return _spell_sentencepiece, strip
    raise ModelError(f"the tokenizer decodes with {', '.join(kinds)}, which is not supported")


def _spell_sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()


def _spell_byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # not in the alphabet: it stands for itself
        return token.encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's printable character for every byte: itself where printable in Latin-1, else one from
    U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table: dict[str, int] = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


_ALPHABET: Final[dict[str, int]] = _alphabet()


def full_text(token_bytes: TokenBytes, ids: list[int], *, skip_special: bool) -> str:
    """The text of `ids`, the same as pushed one by one."""
    detokenizer = Detokenizer(token_bytes, skip_special=skip_special)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()
