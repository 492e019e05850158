"""Calls between tokens of their own: DeepSeek V3 and V3.1, Kimi K2."""

from __future__ import annotations

import re
from typing import Final

from kt.server.tool_parsers.call import Malformed
from kt.server.tool_parsers.reader import CallReader, Reading

DEEPSEEK_SEPARATOR: Final = "<｜tool▁sep｜>"
KIMI_SEPARATOR: Final = "<|tool_call_argument_begin|>"
_KIMI_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::(\d+))?")
_SPACE: Final = " \t\r\n"
_FENCE: Final = "```"
_AFTER: Final = _SPACE + "`}"
"""The end of a fence; a bracket too many does no harm."""


class JsonArguments(CallReader):
    """The arguments of one call, whose name is known."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__({})

    def _read(self) -> Reading:
        yield from self._arguments(self._name)
        yield from self._nothing_else()

    def _nothing_else(self) -> Reading:
        if (yield from self._skip(_AFTER)):
            raise Malformed("text behind the arguments")


class DeepseekCalls(JsonArguments):
    """V3.1: NAME<sep>{...}. V3: function<sep>NAME, then {...} in a fence."""

    def __init__(self, tools: object) -> None:
        super().__init__("")

    def _read(self) -> Reading:
        name = (yield from self._until(DEEPSEEK_SEPARATOR)).strip()
        if not (yield from self._next_is(DEEPSEEK_SEPARATOR)):
            raise Malformed("no separator")
        if (yield from self._skip(_SPACE)) != "{" and name == "function":
            name = (yield from self._until(_FENCE)).strip()
            yield from self._next_is(_FENCE)
            yield from self._next_is("json")
        yield from self._arguments(name)
        yield from self._nothing_else()


class KimiCalls(JsonArguments):
    """functions.NAME:INDEX<sep>{...}; the first part is the call's id."""

    def __init__(self, tools: object) -> None:
        super().__init__("")

    def _read(self) -> Reading:
        head = (yield from self._until(KIMI_SEPARATOR)).strip()
        match = _KIMI_ID.fullmatch(head)
        if not (yield from self._next_is(KIMI_SEPARATOR)) or match is None:
            raise Malformed("no name")
        yield from self._arguments(match[1], head)
        yield from self._nothing_else()
