"""A model's text as it comes, told apart: thought, answer, tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from kt.server.marks import find, held
from kt.server.reasoning import ReasoningForm
from kt.server.tool_parsers import (
    Call,
    CallEnd,
    CallPiece,
    CallReader,
    CallStart,
    CallText,
    ToolForm,
    Tools,
)


@dataclass(frozen=True)
class Text:
    """A piece of the answer or of the thought before it."""

    kind: Literal["content", "reasoning"]
    text: str


Piece = Text | CallPiece

Span = tuple[int, int | None]
"""Where a thought with its marks begins and ends, in characters; None: at the end of the answer."""


class OutputParser(Protocol):
    """However the text is cut, the pieces join to the same message. It never fails: what is no
    call is text. thoughts: where they are in the text, known once it was all pushed.
    """

    thoughts: list[Span]

    def push(self, text: str) -> list[Piece]:
        """What `text` completes."""

    def finish(self, complete: bool = True) -> list[Piece]:
        """What was held back. complete: the model ended the answer itself."""


@dataclass
class Message:
    """Pieces joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Text("content", text):
                    self.content += text
                case Text(_, text):
                    self.reasoning += text
                case CallStart(name, id_):
                    self.calls.append(Call(name, "", id_, whole=False))
                case CallText(text):
                    last = self.calls[-1]
                    self.calls[-1] = replace(last, arguments=last.arguments + text)
                case CallEnd(whole):
                    self.calls[-1] = replace(self.calls[-1], whole=whole)


class PlainParser:
    """For answers that are text and nothing else."""

    def __init__(self) -> None:
        self.thoughts: list[Span] = []

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
        self.thoughts: list[Span] = []
        self._form = form if tools is not None else None
        self._tools = tools or {}
        self._state = "thought" if reasoning and thinking else "start"
        self._text = ""  # not told yet
        self._pushed = 0  # characters
        self._thought = 0  # where the thought begins
        self._call: CallReader | None = None  # reads the call in which the text is
        self._opening = self._closing = ""  # its marks
        self._space = ""  # white space that may be followed by nothing
        self._strip = self._state == "thought"
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        self._text += text
        self._pushed += len(text)
        while getattr(self, f"_in_{self._state}")():
            pass
        return self._take()

    def finish(self, complete: bool = True) -> list[Piece]:
        if self._call is not None:
            self._finish_call(self._call, complete)
        rest, self._text = self._text, ""
        if self._state == "thought":
            self.thoughts.append((self._thought, None))
            self._tell("reasoning", rest)
            self._space = ""
        else:
            self._tell("content", rest)
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
            self._thought = self._pushed - len(begun)
            self._enter("thought", begun[len(opening) :])
        elif self._form and self._form.bare and begun.startswith(("{", "[{")):
            self._enter("call", self._text)
            self._call, self._opening, self._closing = self._form.bare(self._tools), "", ""
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
        self.thoughts.append((self._thought, self._pushed - len(rest)))
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
            self._state, self._call = "call", self._form.reader(self._tools)
            self._opening, self._closing = mark, self._form.closing
        return True

    def _in_call(self) -> bool:
        """Gives the reader what is certain to be no closing mark."""
        reader, closing = self._call, self._closing
        assert reader is not None
        at = self._text.find(closing) if closing else -1
        end = at if at >= 0 else len(self._text) - held(self._text, (closing,))
        text, self._text = self._text[:end], self._text[end:]
        self._add(reader.push(text))
        if reader.failed:
            self._text = reader.left + self._text
            self._end_call(reader, "")
            return True
        if at < 0:
            return False
        self._text = self._text[len(closing) :]
        if reader.in_string:  # it belongs to an argument
            self._add(reader.push(closing))
        else:
            self._add(reader.finish())
            self._end_call(reader, reader.left + closing)
        return True

    def _finish_call(self, reader: CallReader, complete: bool) -> None:
        """At the end of the answer, which may be in the middle of a closing mark."""
        rest, self._text = self._text, ""
        if reader.in_string or not self._closing.startswith(rest):
            self._add(reader.push(rest))
            rest = ""
        if reader.failed:
            rest = ""
        else:
            self._add(reader.finish(cut=not complete))
        self._end_call(reader, reader.left + rest)

    def _end_call(self, reader: CallReader, rest: str) -> None:
        """Goes on with the answer. What was no call is text, and so is the `rest` then."""
        self._call, self._state = None, "content"
        if reader.failed:
            self._tell("content", ("" if reader.begun else self._opening) + reader.rest + rest)

    def _add(self, pieces: list[CallPiece]) -> None:
        """Tells of calls; white space around them is dropped."""
        if pieces:
            self._space, self._strip = "", True
            self._pieces += pieces

    def _enter(self, state: str, text: str) -> None:
        self._state, self._text = state, text
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
