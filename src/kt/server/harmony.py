"""gpt-oss's form of an answer: messages on channels.

A message is a header, <|message|>, a body and an end mark. The header names the channel (analysis,
commentary, final) and, for a tool call, the function: `commentary to=functions.NAME`.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from kt.server.marks import find, held
from kt.server.output import Piece, Span, Text
from kt.server.tool_parsers import CallReader
from kt.server.tool_parsers.token_calls import JsonArguments

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
        self.thoughts: list[Span] = []
        self._tools = tools
        self._text = ""
        self._pushed = 0  # characters
        self._message = 0  # where the one that is being read begins
        self._header = True  # reading a header, else a body
        self._kind: Literal["content", "reasoning"] = "content"
        self._call: CallReader | None = None  # reads the body, if it is a call
        self._said: set[str] = set()  # kinds that have some text
        self._join = False  # the next text follows that of an earlier message

    def push(self, text: str) -> list[Piece]:
        self._text += text
        self._pushed += len(text)
        pieces: list[Piece] = []
        while (self._read_header if self._header else self._read_body)(pieces):
            pass
        return pieces

    def finish(self, complete: bool = True) -> list[Piece]:
        pieces: list[Piece] = []
        text, self._text = self._text, ""
        if not self._header:
            self._body(pieces, text)
            self._end_body(pieces, cut=not complete)
        # A header alone says nothing; text without any mark is an answer in no form at all.
        elif not any(mark in text for mark in MARKS) and text.strip() != "assistant":
            self._tell(pieces, "content", text)
        return pieces

    def _read_header(self, pieces: list[Piece]) -> bool:
        found = find(self._text, (BODY,))
        if found is None:
            return False
        header, self._text = self._text[: found[0]], self._text[found[0] + len(BODY) :]
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        self._header, self._join = False, True
        self._kind = "reasoning" if channel and channel[1] == "analysis" else "content"
        if recipient and self._tools:
            self._call = JsonArguments(recipient[1])
        return True

    def _read_body(self, pieces: list[Piece]) -> bool:
        found = find(self._text, ENDS)
        if found is None:
            end = len(self._text) - held(self._text, ENDS)
            text, self._text = self._text[:end], self._text[end:]
            self._body(pieces, text)
            return False
        at, mark = found
        body, self._text = self._text[:at], self._text[at + len(mark) :]
        self._header = True
        if mark == SIGN:  # belongs to the next header
            self._text = SIGN + self._text
        self._body(pieces, body)
        self._end_body(pieces)
        return True

    def _body(self, pieces: list[Piece], text: str) -> None:
        """More of the message."""
        if self._call is None:
            self._tell(pieces, self._kind, text)
            return
        pieces += self._call.push(text)
        if self._call.failed:
            self._no_call(pieces, self._call)

    def _end_body(self, pieces: list[Piece], *, cut: bool = False) -> None:
        if self._call is not None:
            call = self._call
            pieces += call.finish(cut=cut)
            if call.failed:
                self._no_call(pieces, call)
            self._call = None
        elif self._kind == "reasoning":
            self.thoughts.append((self._message, self._pushed - len(self._text)))
        self._message = self._pushed - len(self._text)

    def _no_call(self, pieces: list[Piece], call: CallReader) -> None:
        """What is no part of a call is text."""
        self._call, self._kind = None, "content"
        self._tell(pieces, "content", call.rest + call.left)

    def _tell(self, pieces: list[Piece], kind: Literal["content", "reasoning"], text: str) -> None:
        if not text:
            return
        if self._join and kind in self._said:
            text = "\n" + text
        self._join = False
        self._said.add(kind)
        pieces.append(Text(kind, text))
