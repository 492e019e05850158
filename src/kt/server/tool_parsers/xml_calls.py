"""Calls written in angle brackets: Qwen3-Coder, GLM-4.5 to 4.7, MiniMax-M2.

Values are bare text; the function's schema says which of them are strings. An argument is told when
its end has come, and a call with its first argument.
"""

from __future__ import annotations

import re
from typing import Final

from kt.server.tool_parsers.call import Malformed, coerce, property_of
from kt.server.tool_parsers.reader import CallReader, Reading, as_json

_SPACE: Final = " \t\r\n"
_BARE_NAME: Final = re.compile(r"[^\s<>{}\"]+")
_QUOTES: Final = "\"'"


class XmlCalls(CallReader):
    """Arguments between tags. A subclass reads a name and what follows it."""

    def _argument(self, function: str, key: str, value: str) -> None:
        """One more of the function that is read."""
        text = value.removeprefix("\n").removesuffix("\n")
        found = as_json(coerce(text, property_of(self._tools, function, key)))
        start = ", "
        if not self._open:
            self._begin(function)
            start = "{"
        self._tell(f"{start}{as_json(key)}: {found}")
        self.rest = ""

    def _complete(self, function: str) -> None:
        """There are no more arguments."""
        if not self._open:
            self._begin(function)
            self._tell("{")
        self._tell("}")
        self._end()
        self.rest = ""

    def _may_end(self) -> None:
        """An end tag that the model has left out is no matter; one that it did not get to is."""
        if not self._over or self._cut:
            raise Malformed("it ends too early")


class TaggedCalls(XmlCalls):
    """FUNCTION NAME>, any number of PARAMETER KEY> value </parameter>, function_end; several."""

    function: str
    function_end: str
    parameter: str
    parameter_end = "</parameter>"

    def _read(self) -> Reading:
        while (yield from self._skip(_SPACE)) or not self.begun:
            if not (yield from self._next_is(self.function)):
                raise Malformed("no function")
            yield from self._function((yield from self._named()))

    def _function(self, name: str) -> Reading:
        while (yield from self._skip(_SPACE)):
            if (yield from self._next_is(self.parameter)):
                key = yield from self._named()
                self._argument(name, key, (yield from self._value()))
            elif (yield from self._next_is(self.function_end)):
                break
            else:
                raise Malformed("other text")
        else:
            self._may_end()
        self._complete(name)

    def _named(self) -> Reading:
        """The name that the tag ends with."""
        name = (yield from self._until(">", "\n")).strip().strip(_QUOTES)
        if not name or not (yield from self._next_is(">")):
            raise Malformed("no name")
        return name

    def _value(self) -> Reading:
        """Up to the tag behind it, or to the next parameter."""
        value = yield from self._until(self.parameter_end, "\n" + self.parameter)
        if not self.left:
            self._may_end()
        yield from self._next_is(self.parameter_end)
        return value


class FunctionCalls(TaggedCalls):
    """<function=NAME>, <parameter=KEY> value </parameter>, ... </function>."""

    function = "<function="
    function_end = "</function>"
    parameter = "<parameter="


class InvokeCalls(TaggedCalls):
    """<invoke name="NAME">, <parameter name="KEY"> value </parameter>, ... </invoke>."""

    function = "<invoke name="
    function_end = "</invoke>"
    parameter = "<parameter name="


class PairCalls(XmlCalls):
    """NAME, then <arg_key>KEY</arg_key> <arg_value>value</arg_value> for each argument."""

    def _read(self) -> Reading:
        name = (yield from self._until("<arg_key>")).strip()
        if not _BARE_NAME.fullmatch(name):
            raise Malformed("no name")
        while (yield from self._skip(_SPACE)):
            key = yield from self._between("arg_key")
            yield from self._skip(_SPACE)
            self._argument(name, key.strip(), (yield from self._between("arg_value")))
        self._may_end()
        self._complete(name)

    def _between(self, tag: str) -> Reading:
        if not (yield from self._next_is(f"<{tag}>")):
            raise Malformed("other text")
        text = yield from self._until(f"</{tag}>")
        if not (yield from self._next_is(f"</{tag}>")):
            raise Malformed("it ends too early")
        return text
