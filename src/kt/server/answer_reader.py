"""Reads one answer of a conversation: its pieces, and how many of its tokens were thoughts."""

from __future__ import annotations

from bisect import bisect_left

from kt.engine.request import Delta
from kt.server.chat import Turn
from kt.server.generation import Answer
from kt.server.output import Message, Piece, Text
from kt.server.tool_parsers import CallEnd, CallStart


class AnswerReader:
    """begun, calls: how many tool calls were told, and how many of them whole. reasoning_tokens: of
    thoughts with their marks, known at the end.
    """

    def __init__(self, turn: Turn) -> None:
        self.begun = self.calls = self.reasoning_tokens = 0
        self._parser = turn.parser()
        self._parallel = turn.parallel
        self._muted = False  # in a call that shall not be told
        self._starts: list[int] | None = [] if turn.profile.thinks else None  # of tokens in text
        self._length = 0

    def push(self, delta: Delta) -> list[Piece]:
        if self._starts is not None:
            for token in delta.tokens:
                self._starts.append(self._length)
                self._length += len(token.text)
        return self._kept(self._parser.push(delta.text))

    def finish(self, reason: str) -> list[Piece]:
        """reason: why the engine ended the answer."""
        pieces = self._kept(self._parser.finish(reason == "stop"))
        self.reasoning_tokens = self._count(self._starts or [])
        return pieces

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        """Without calls after the first, if only one is wanted."""
        kept = []
        for piece in pieces:
            if isinstance(piece, CallStart):
                self._muted = self.begun > 0 and not self._parallel
                self.begun += not self._muted
            if isinstance(piece, Text) or not self._muted:
                kept.append(piece)
                self.calls += isinstance(piece, CallEnd) and piece.whole
        return kept

    def _count(self, starts: list[int]) -> int:
        count = 0
        for first, end in self._parser.thoughts:
            last = len(starts) if end is None else bisect_left(starts, end)
            count += last - bisect_left(starts, first)
        return count


def read(reader: AnswerReader, answer: Answer) -> Message:
    """The message of a whole answer."""
    assert answer.finished is not None
    message = Message()
    message.add(reader.push(Delta("".join(answer.text), answer.tokens)))
    message.add(reader.finish(answer.finished.reason))
    return message
