"""Calls between tokens of their own: DeepSeek V3 and V3.1, Kimi K2."""

from __future__ import annotations

import re
from typing import Final

from kt.server.tool_parsers.call import Call, Malformed, Tools, make, read_json

DEEPSEEK_SEPARATOR: Final = "<｜tool▁sep｜>"
KIMI_SEPARATOR: Final = "<|tool_call_argument_begin|>"
_FENCED: Final = re.compile(r"(.*?)\s*```(?:json)?\s*\n(.*)\n?```\s*", re.DOTALL)
_KIMI_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::(\d+))?")


def parse_deepseek(body: str, tools: Tools) -> list[Call]:
    """V3.1: NAME<sep>{...}. V3: function<sep>NAME, then {...} in a fence."""
    kind, separator, rest = body.partition(DEEPSEEK_SEPARATOR)
    if not separator:
        raise Malformed("no separator")
    fenced = _FENCED.fullmatch(rest)
    if fenced and kind.strip() == "function":
        return [make(fenced[1].strip(), read_json(fenced[2]))]
    return [make(kind.strip(), read_json(rest))]


def parse_kimi(body: str, tools: Tools) -> list[Call]:
    """functions.NAME:INDEX<sep>{...}; the first part is the call's id."""
    head, separator, rest = body.partition(KIMI_SEPARATOR)
    match = _KIMI_ID.fullmatch(head.strip())
    if not separator or match is None:
        raise Malformed("no name")
    return [make(match[1], read_json(rest), head.strip())]
