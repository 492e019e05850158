"""gpt-oss's form of an answer: messages on channels.

A message is a header, <|message|>, a body and an end mark. The header names the channel (analysis,
commentary, final) and, for a tool call, the function: `commentary to=functions.NAME`.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from kt.server.marks import find, held
from kt.server.output import Piece, Text
from kt.server.tool_parsers import Malformed
from kt.server.tool_parsers.call import make, read_json

NAME: Final = "harmony"
SIGN: Final = "<|channel|>"
BODY: Final = "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
MARKS: Final = (*ENDS, BODY, "<|constrain|>")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser:
    """See OutputParser. tools: whether calls are expected; else their arguments are text."""

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._text = ""
        self._header = True  # reading a header, else a body
        self._kind: Literal["content", "reasoning", "call"] = "content"
        self._name = ""
        self._said: set[str] = set()  # kinds that have some text
        self._join = False  # the next text follows that of an earlier message

    def push(self, text: str) -> list[Piece]:
        self._text += text
        pieces: list[Piece] = []
        while (self._read_header if self._header else self._read_body)(pieces):
            pass
        return pieces

    def finish(self, complete: bool = True) -> list[Piece]:
        pieces: list[Piece] = []
        if self._header:
            text = self._text
            # A header alone says nothing; text without any mark is an answer in no form at all.
            if not any(mark in text for mark in MARKS) and text.strip() != "assistant":
                self._tell(pieces, "content", text)
        elif self._kind == "call":
            self._end_call(pieces, self._text)
        else:
            self._tell(pieces, self._kind, self._text)
        self._text = ""
        return pieces

    def _read_header(self, pieces: list[Piece]) -> bool:
        found = find(self._text, (BODY,))
        if found is None:
            return False
        header, self._text = self._text[: found[0]], self._text[found[0] + len(BODY) :]
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        self._header, self._join = False, True
        if recipient and self._tools:
            self._kind, self._name = "call", recipient[1]
        elif channel and channel[1] == "analysis":
            self._kind = "reasoning"
        else:
            self._kind = "content"
        return True

    def _read_body(self, pieces: list[Piece]) -> bool:
        found = find(self._text, ENDS)
        if found is None:
            if self._kind != "call":
                end = len(self._text) - held(self._text, ENDS)
                self._tell(pieces, self._kind, self._text[:end])
                self._text = self._text[end:]
            return False
        at, mark = found
        body, self._text = self._text[:at], self._text[at + len(mark) :]
        if self._kind == "call":
            self._end_call(pieces, body)
        else:
            self._tell(pieces, self._kind, body)
        self._header = True
        if mark == SIGN:  # belongs to the next header
            self._text = SIGN + self._text
        return True

    def _end_call(self, pieces: list[Piece], body: str) -> None:
        try:
            pieces.append(make(self._name, read_json(body)))
        except Malformed:
            self._tell(pieces, "content", body)

    def _tell(self, pieces: list[Piece], kind: Literal["content", "reasoning"], text: str) -> None:
        if not text:
            return
        if self._join and kind in self._said:
            text = "\n" + text
        self._join = False
        self._said.add(kind)
        pieces.append(Text(kind, text))
