"""A model's text as it comes, told apart: thought, answer, tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from kt.server.marks import find, held
from kt.server.reasoning import ReasoningForm
from kt.server.tool_parsers import Call, Malformed, ToolForm, Tools, Unfinished


@dataclass(frozen=True)
class Text:
    """A piece of the answer or of the thought before it."""

    kind: Literal["content", "reasoning"]
    text: str


Piece = Text | Call


class OutputParser(Protocol):
    """However the text is cut, the pieces join to the same message. It never fails: what is no
    call is text.
    """

    def push(self, text: str) -> list[Piece]:
        """What `text` completes."""

    def finish(self, complete: bool = True) -> list[Piece]:
        """What was held back. complete: the model ended the answer itself, so a call without its
        closing mark is one.
        """


@dataclass
class Message:
    """Pieces joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Call):
                self.calls.append(piece)
            elif piece.kind == "content":
                self.content += piece.text
            else:
                self.reasoning += piece.text


class PlainParser:
    """For answers that are text and nothing else."""

    def push(self, text: str) -> list[Piece]:
        return [Text("content", text)] if text else []

    def finish(self, complete: bool = True) -> list[Piece]:
        return []


class MarkParser:
    """Thoughts and calls between marks.

    tools: None if no calls are expected; then their marks are text. thinking: the prompt has opened
    the thought. White space around thoughts and before and after calls is dropped.
    """

    def __init__(
        self,
        reasoning: ReasoningForm | None,
        form: ToolForm | None,
        tools: Tools | None,
        *,
        thinking: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._form = form if tools is not None else None
        self._tools = tools or {}
        self._closing = form.closing if form else ""
        self._state = "thought" if reasoning and thinking else "start"
        self._text = ""  # not told yet
        self._searched = 0  # characters of a call that hold no closing mark
        self._opening = ""  # of the call that is being read
        self._space = ""  # white space that may be followed by nothing
        self._strip = self._state == "thought"
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        self._text += text
        while getattr(self, f"_in_{self._state}")():
            pass
        return self._take()

    def finish(self, complete: bool = True) -> list[Piece]:
        rest, self._text = self._text, ""
        if self._state == "call" and (complete or not (self._opening and self._closing)):
            self._end_call(rest, "")
            self._state = "content"
        elif self._state == "thought":
            self._tell("reasoning", rest)
            self._space = ""
        else:
            self._tell("content", (self._opening if self._state == "call" else "") + rest)
        if self._space:
            self._pieces.append(Text("content", self._space))
            self._space = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _in_start(self) -> bool:
        """Only white space so far: a thought, a bare call or the answer begins."""
        begun = self._text.lstrip()
        if not begun:
            return False
        opening = self._reasoning.opening if self._reasoning else ""
        if opening and opening.startswith(begun[: len(opening)]):
            if len(begun) < len(opening):
                return False
            self._enter("thought", begun[len(opening) :])
        elif self._form and self._form.bare and begun.startswith(("{", "[{")):
            self._enter("call", self._text)
            self._opening = ""
        elif self._form and self._form.bare and begun == "[":
            return False
        else:
            self._state = "content"
        return True

    def _in_thought(self) -> bool:
        assert self._reasoning is not None
        closing = self._reasoning.closing
        found = find(self._text, (closing,))
        if found is None:
            self._tell("reasoning", self._released((closing,)))
            return False
        self._tell("reasoning", self._text[: found[0]])
        self._space = ""
        rest = self._text[found[0] + len(closing) :]
        self._reasoning = None  # there is one thought
        self._enter("start" if self._form and self._form.bare else "content", rest)
        return True

    def _in_content(self) -> bool:
        if self._form is None:
            self._tell("content", self._released(()))
            return False
        marks = (self._form.opening, *self._form.dropped)
        found = find(self._text, marks)
        if found is None:
            self._tell("content", self._released(marks))
            return False
        at, mark = found
        self._tell("content", self._text[:at])
        self._text = self._text[at + len(mark) :]
        if mark == self._form.opening:
            self._state, self._opening, self._searched = "call", mark, 0
        return True

    def _in_call(self) -> bool:
        closing = self._closing if self._opening else ""
        if not closing:
            return False  # to the end of the answer
        at = self._text.find(closing, self._searched)
        if at < 0:
            self._searched = max(self._searched, len(self._text) - len(closing) + 1)
            return False
        body, rest = self._text[:at], self._text[at + len(closing) :]
        if not self._end_call(body, closing):
            self._searched = at + len(closing)
            return True
        self._state, self._text = "content", rest
        return True

    def _end_call(self, body: str, closing: str) -> bool:
        """Tells the call or, if it is none, its text. False if the mark was inside a string."""
        assert self._form is not None
        parse = self._form.parse if self._opening or not self._form.bare else self._form.bare
        try:
            calls = parse(body, self._tools)
        except Unfinished:
            if closing:
                return False
            calls = []
        except Malformed:
            calls = []
        if calls:
            self._space, self._strip = "", True
            self._pieces += calls
        else:
            self._tell("content", self._opening + body + closing)
        return True

    def _enter(self, state: str, text: str) -> None:
        self._state, self._text, self._searched = state, text, 0
        self._strip = state != "call"

    def _released(self, marks: tuple[str, ...]) -> str:
        """Takes the text that can be no beginning of a mark."""
        end = len(self._text) - held(self._text, marks)
        text, self._text = self._text[:end], self._text[end:]
        return text

    def _tell(self, kind: Literal["content", "reasoning"], text: str) -> None:
        if self._strip:
            text = text.lstrip()
        if not text:
            return
        self._strip = False
        text = self._space + text
        kept = len(text)
        if kind == "reasoning" or self._form:
            kept = len(text.rstrip())
        self._space = text[kept:]
        if kept:
            self._pieces.append(Text(kind, text[:kept]))
