"""Follows one JSON value through pieces of text, however they are cut."""

from __future__ import annotations

import json
import re
from typing import Final, Literal

DEEPEST: Final = 100
"""Objects and lists in each other."""
LONGEST: Final = 400
"""Characters of a number."""

_CLOSING: Final = {"{": "}", "[": "]"}
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR: Final = re.compile(
    r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null", re.ASCII
)
_ESCAPED: Final = frozenset('"\\/bfnrtu')
_HEX: Final = frozenset("0123456789abcdefABCDEF")

# What may come next; "first": a value or the end of a list, "first key" likewise of an object.
_Next = Literal["value", "first", "key", "first key", "colon", "more"]


class JsonScanner:
    """Takes in text up to the value's end or the first character that cannot belong to it.

    What `take` gives is always the beginning of a JSON value. It is the text as it came, but
    control characters in strings, which some models write as they are, are escaped.

    done: the value has ended. bad: the last character looked at does not fit. in_string: the next
    character belongs to a string. certain: the text is hardly anything else than what it seems to
    be: it has a key and its colon, or is done. pending: the start of a number or a word, read but
    not told.
    """

    def __init__(self) -> None:
        self.done = self.bad = self.in_string = self.certain = False
        self.pending = ""
        self._open: list[str] = []  # closing brackets that are due
        self._next: _Next = "value"
        self._escape = ""  # of an escape sequence in a string: what has come of it
        self._told: list[str] = []

    def feed(self, text: str) -> int:
        """How many of the characters were taken in: all, unless the value is done or bad."""
        at = 0
        while at < len(text) and not self.done and not self.bad:
            at = self._in_string(text, at) if self.in_string else self._between(text, at)
        return at

    def finish(self) -> None:
        """No more text will come: ends a number or word at the end."""
        if self.pending and not self.bad:
            self.bad = not self._end_scalar()

    def take(self) -> str:
        """The value's text since the last call."""
        text = "".join(self._told)
        self._told.clear()
        return text

    def _in_string(self, text: str, at: int) -> int:
        char = text[at]
        if self._escape:
            return self._in_escape(char, at)
        plain = _PLAIN.match(text, at)
        if plain:
            self._told.append(plain[0])
            return plain.end()
        if char == '"':
            self.in_string = False
            self._told.append(char)
            if self._next in ("key", "first key"):
                self._next = "colon"
            else:
                self._ended()
        elif char == "\\":
            self._escape = char
            self._told.append(char)
        else:
            self._told.append(json.dumps(char)[1:-1])
        return at + 1

    def _in_escape(self, char: str, at: int) -> int:
        """Behind a backslash: one character, or u and four digits."""
        if char not in (_ESCAPED if self._escape == "\\" else _HEX):
            self.bad = True
            return at
        self._escape += char
        if self._escape[1] != "u" or len(self._escape) == len("\\u0000"):
            self._escape = ""
        self._told.append(char)
        return at + 1

    def _between(self, text: str, at: int) -> int:
        """Outside of strings."""
        word = _WORD.match(text, at)
        if word and self._next in ("value", "first"):
            self.pending += word[0]
            self.bad = len(self.pending) > LONGEST
            return word.end()
        if self.pending:
            self.bad = not self._end_scalar()
            return at  # what follows is looked at anew
        space = _SPACE.match(text, at)
        if space:
            self._told.append(space[0])
            return space.end()
        self.bad = not self._mark(text[at])
        if self.bad:
            return at
        self._told.append(text[at])
        return at + 1

    def _mark(self, char: str) -> bool:
        """Goes on by a mark of JSON; False if it does not fit."""
        if char == '"' and self._next not in ("colon", "more"):
            self.in_string = True
        elif char in _CLOSING and self._next in ("value", "first"):
            self._open.append(_CLOSING[char])
            self._next = "first key" if char == "{" else "first"
            return len(self._open) <= DEEPEST
        elif self._open and char == self._open[-1] and self._next in ("more", *_empty(char)):
            self._open.pop()
            self._ended()
        elif char == "," and self._next == "more":
            self._next = "key" if self._open[-1] == "}" else "value"
        elif char == ":" and self._next == "colon":
            self._next = "value"
            self.certain = True
        else:
            return False
        return True

    def _end_scalar(self) -> bool:
        """Whether what is pending is a number or a word of JSON; then it is told."""
        if not _SCALAR.fullmatch(self.pending):
            return False
        self._told.append(self.pending)
        self.pending = ""
        self._ended()
        return True

    def _ended(self) -> None:
        """A value is over, maybe all of it."""
        self._next = "more"
        self.done = not self._open
        self.certain = self.certain or self.done


def _empty(closing: str) -> tuple[_Next]:
    """Where the bracket may close what it has just opened."""
    return ("first key",) if closing == "}" else ("first",)
