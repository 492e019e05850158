"""Calls written as JSON: Hermes and Qwen, Llama 3."""

from __future__ import annotations

import json
from typing import Final

from kt.server.tool_parsers.call import Malformed
from kt.server.tool_parsers.json_scanner import JsonScanner
from kt.server.tool_parsers.reader import CallReader, Reading

_SPACE: Final = " \t\r\n"
_BETWEEN: Final = _SPACE + ",;"
_AFTER: Final = _BETWEEN + "}]"
"""A bracket too many does no harm."""
_ARGUMENTS: Final = ("arguments", "parameters")


class JsonCalls(CallReader):
    """{"name": ..., "arguments": {...}}, several in a list or one after the other.

    Arguments before the name, or as a text, are told once the call is complete.
    """

    bare = False

    def _read(self) -> Reading:
        if (yield from self._skip(_SPACE)) == "[":
            self._take(1)
        while (yield from self._skip(_AFTER if self.begun else _BETWEEN)):
            if self.begun:
                self.rest = ""
            if not (yield from self._next_is("{")):
                raise Malformed("no object")
            yield from self._call()
        if not self.begun:
            raise Malformed("no call")

    def _call(self) -> Reading:
        name = arguments = ""
        told = False
        while (yield from self._skip(_SPACE)) != "}":
            key = yield from self._key()
            if key in _ARGUMENTS and name and not told and self.left[:1] == "{":
                yield from self._arguments(name)
                told = True
            else:
                value = yield from self._json()
                if key == "name":
                    name = name or _name(value)
                elif key in _ARGUMENTS:
                    arguments = arguments or value
            if (yield from self._skip(_SPACE)) == ",":
                self._take(1)
            elif self.left[:1] != "}":
                raise Malformed("no comma")
        self._take(1)
        if not told:
            self._whole(name, arguments)

    def _key(self) -> Reading:
        """Up to the value's first character."""
        key = json.loads((yield from self._string()))
        if (yield from self._skip(_SPACE)) != ":":
            raise Malformed("no colon")
        self._take(1)
        yield from self._skip(_SPACE)
        return key

    def _string(self) -> Reading:
        if self.left[:1] != '"':
            raise Malformed("no key")
        return (yield from self._json())

    def _whole(self, name: str, arguments: str) -> None:
        if not arguments and self.bare:
            raise Malformed("not a call")
        text = _object(arguments) if arguments else "{}"
        self._begin(name)
        self._tell(text)
        self._end()


class BareJsonCalls(JsonCalls):
    """The same without marks around it: only objects with arguments are calls."""

    bare = True


def _name(text: str) -> str:
    name = json.loads(text)
    if not isinstance(name, str) or not name:
        raise Malformed("no name")
    return name


def _object(text: str) -> str:
    """Arguments, also where they are a text that holds them."""
    if text.startswith('"'):
        text = json.loads(text)
    scanner = JsonScanner()
    inner = text.strip()
    if not inner.startswith("{") or scanner.feed(inner) < len(inner) or not scanner.done:
        raise Malformed("the arguments are no object")
    return scanner.take()
