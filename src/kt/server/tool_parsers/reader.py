"""Reads calls as they come: what the readers of all forms have in common."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from kt.server.tool_parsers.call import (
    CallEnd,
    CallPiece,
    CallStart,
    CallText,
    Malformed,
    Tools,
)
from kt.server.tool_parsers.json_scanner import JsonScanner

Reading = Generator[None, None, Any]
"""Yields where it needs more text."""


class CallReader:
    """What stands between the marks of calls, in pieces as it comes. A subclass knows the form.
    However the text is cut, the pieces join to the same calls, and the rest is the same.

    in_string: a closing mark would be part of an argument. begun: a call was told. failed: the text
    left the form; then `rest` was read but is no part of a told call, and `left` was not read.
    """

    def __init__(self, tools: Tools) -> None:
        self.in_string = False
        self.begun = False
        self.failed = False
        self.rest = ""
        self.left = ""
        self._tools = tools
        self._over = False  # no more text will come
        self._cut = False  # and the model did not end it itself
        self._open = False  # a call is told and not over
        self._pieces: list[CallPiece] = []
        self._reading = self._read()

    def push(self, text: str) -> list[CallPiece]:
        """What `text` completes."""
        self.left += text
        return self._go_on()

    def finish(self, *, cut: bool = False) -> list[CallPiece]:
        """At the closing mark, or at the end of the answer. cut: the model would have gone on."""
        self._over, self._cut = True, cut
        return self._go_on()

    def _read(self) -> Reading:
        """All of the text. Raises Malformed where it leaves the form."""
        raise NotImplementedError

    def _go_on(self) -> list[CallPiece]:
        try:
            next(self._reading)
        except StopIteration:
            pass
        except Malformed:
            self.failed = bool(self.rest.strip() or self.left or self._open or not self.begun)
            self._end(whole=False)
        pieces, self._pieces = self._pieces, []
        return pieces

    # What a call is told by.

    def _begin(self, name: str, id_: str = "") -> None:
        if not name:
            raise Malformed("no name")
        self.begun = self._open = True
        self.rest = ""
        self._pieces.append(CallStart(name, id_))

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(CallText(text))

    def _end(self, *, whole: bool = True) -> None:
        if self._open:
            self._open = False
            self._pieces.append(CallEnd(whole))

    # What a form is read by.

    def _take(self, count: int) -> str:
        """The next characters, which must be there."""
        text, self.left = self.left[:count], self.left[count:]
        self.rest += text
        return text

    def _more(self) -> Reading:
        """Waits for more text. Raises Malformed if none will come."""
        if self._over:
            raise Malformed("it ends too early")
        yield

    def _skip(self, characters: str) -> Reading:
        """Any of these; then there is another one, or the end: then the result is ""."""
        while True:
            self._take(len(self.left) - len(self.left.lstrip(characters)))
            if self.left or self._over:
                return self.left[:1]
            yield

    def _until(self, *marks: str) -> Reading:
        """The text before the first of the marks, which is left, or before the end."""
        searched = 0
        while True:
            found = [at for mark in marks if (at := self.left.find(mark, searched)) >= 0]
            if found or self._over:
                return self._take(min(found, default=len(self.left)))
            searched = max(0, len(self.left) - max(map(len, marks)) + 1)
            yield

    def _next_is(self, mark: str) -> Reading:
        """Whether `mark` comes next; then it is taken."""
        while len(self.left) < len(mark) and mark.startswith(self.left) and not self._over:
            yield
        if not self.left.startswith(mark):
            return False
        self._take(len(mark))
        return True

    def _json(self) -> Reading:
        """The value that comes next, as its text."""
        scanner = JsonScanner()
        while not scanner.done:
            self._feed(scanner)
            yield from self._go_on_with(scanner)
        return scanner.take()

    def _arguments(self, name: str, id_: str = "") -> Reading:
        """The object that comes next, as the arguments of a call that is told as they come."""
        if (yield from self._skip(" \t\r\n")) != "{":
            raise Malformed("the arguments are no object")
        scanner = JsonScanner()
        while not scanner.done:
            self._feed(scanner)
            if scanner.certain:
                if not self._open:
                    self._begin(name, id_)
                self._tell(scanner.take())
                self.rest = scanner.pending
            yield from self._go_on_with(scanner)
        self._end()

    def _feed(self, scanner: JsonScanner) -> None:
        self._take(scanner.feed(self.left))
        if self._over and not self.left:
            scanner.finish()
        self.in_string = scanner.in_string

    def _go_on_with(self, scanner: JsonScanner) -> Reading:
        if scanner.bad:
            raise Malformed("no JSON")
        if not scanner.done:
            yield from self._more()


def as_json(value: Any) -> str:
    """JSON text as the arguments of calls have it. Raises Malformed."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
