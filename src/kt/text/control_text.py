"""Special tokens in text: recognised where they are meant, text where a user merely wrote them.

A user may write "<|im_end|>" in a message; as a token it would end their turn. So:
1. Before a template renders, mark() breaks the text of special tokens in all message strings with
   a character that occurs nowhere else (a Unicode noncharacter). Filters such as trim leave it.
2. The template's own special tokens come out unbroken. seal() wraps those in a random key.
3. The tokenizer knows special tokens under their sealed spelling only. The marks are taken out, and
   the text is encoded in one go, so what the user wrote is tokenised as the text it is.
A mark that a template damages leaves odd characters in the text, but never makes a token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

_MARKS: Final = tuple(chr(code) for code in range(0xFDD0, 0xFDEF))
_SEAL: Final = "\ufdef"
_STEP: Final = 1 << 16  # characters


class ControlText:
    """The special tokens of a tokenizer and their sealed spelling."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Changes `tokenizer`: special tokens are recognised under their sealed spelling only."""
        added = tokenizer.get_added_tokens_decoder()
        special = {
            id_: token for id_, token in added.items() if token.special and token.content.strip()
        }
        self.texts = {id_: token.content for id_, token in special.items()}
        self._key = f"{_SEAL}{secrets.token_hex(8)}"
        self._pattern = _any_of(special.values())
        self._longest = max(map(len, self.texts.values()), default=0)
        self._starts = _starts(self.texts.values())
        sealed = {self._sealed(token.content): id_ for id_, token in special.items()}
        tokenizer.encode_special_tokens = True
        tokenizer.add_tokens(
            [
                AddedToken(
                    self._sealed(token.content),
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    single_word=token.single_word,
                    normalized=False,
                )
                for token in special.values()
            ]
        )
        self.real_ids = {tokenizer.token_to_id(text): id_ for text, id_ in sealed.items()}

    def seal(self, text: str) -> str:
        """`text` with every special token in its sealed spelling."""
        return self._replace(text, self._sealed)

    def mark(self, *values: Any) -> tuple[str, list[Any]]:
        """A mark, and copies of JSON-like `values` in whose strings it breaks the text of special
        tokens.
        """
        texts = list(_strings(values))
        free = (mark for mark in _MARKS if not any(_occurs(mark, text) for text in texts))
        mark = next(free, "")
        # What uses all noncharacters is no text: without them nothing can pass for a mark.
        clean = (lambda text: text) if mark else _without_marks
        mark = mark or _MARKS[0]
        return mark, [_map(value, lambda text: self._break(clean(text), mark)) for value in values]

    def encodable(self, rendered: str, mark: str) -> str:
        """What to encode for a prompt rendered from marked values."""
        sealed = self.seal(rendered)
        return sealed.replace(mark, "").replace(_escaped(mark), "")

    def _replace(self, text: str, change: Callable[[str], str]) -> str:
        """`text` with every special token changed. In steps, because one search of a long text
        would keep all other threads waiting.
        """
        parts, done, at = [], 0, 0
        while at < len(text):
            end = at + _STEP
            match = self._pattern.search(text, at, end + self._longest + 1)
            if match is None or match.start() >= end:
                at = end
                continue
            parts += [text[done : match.start()], change(match[0])]
            done = at = match.end()
        return "".join([*parts, text[done:]])

    def _sealed(self, text: str) -> str:
        return f"{self._key}{text}{_SEAL}"

    def _break(self, text: str, mark: str) -> str:
        text = self._replace(text, lambda token: token[0] + mark + token[1:])
        # The start of a special token at the end of one string could meet its rest in the next.
        stripped = text.rstrip()
        if stripped.endswith(self._starts):
            return stripped + mark + text[len(stripped) :]
        return text


def _any_of(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """Matches the longest special token at the leftmost place, as the tokenizers library does."""
    longest_first = sorted(tokens, key=lambda token: len(token.content), reverse=True)
    alternatives = [
        rf"(?<!\w){re.escape(token.content)}(?!\w)"
        if token.single_word
        else re.escape(token.content)
        for token in longest_first
    ]
    return re.compile("|".join(alternatives) or r"(?!)")


def _starts(texts: Iterable[str]) -> tuple[str, ...]:
    """All proper beginnings of special tokens."""
    return tuple({text[:size] for text in texts for size in range(1, len(text))})


def _escaped(mark: str) -> str:
    """The mark as JSON in ASCII spells it."""
    return f"\\u{ord(mark):04x}"


def _occurs(mark: str, text: str) -> bool:
    return mark in text or _escaped(mark) in text


def _without_marks(text: str) -> str:
    return "".join(character for character in text if character not in _MARKS)


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _map(value: Any, change: Any) -> Any:
    """A copy of a JSON-like value with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map(key, change): _map(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, change) for item in value]
    return value
