"""Calls written in angle brackets: Qwen3-Coder, GLM-4.5 to 4.7, MiniMax-M2.

Values are bare text; the function's schema says which of them are strings.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kt.server.tool_parsers.call import Call, Malformed, Tools, coerce, make, property_of

_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER: Final = re.compile(
    r"\s*<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=\n<parameter=)|\Z)", re.DOTALL
)
_INVOKE: Final = re.compile(r"""\s*<invoke name=["']?([^"'>\n]+)["']?>(.*?)</invoke>""", re.DOTALL)
_NAMED: Final = re.compile(
    r"""\s*<parameter name=["']?([^"'>\n]+)["']?>(.*?)</parameter>""", re.DOTALL
)
_PAIR: Final = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def parse_function(body: str, tools: Tools) -> list[Call]:
    """<function=NAME>, <parameter=KEY> value </parameter>, ... </function>."""
    return _functions(body, tools, _FUNCTION, _PARAMETER)


def parse_invoke(body: str, tools: Tools) -> list[Call]:
    """<invoke name="NAME">, <parameter name="KEY"> value </parameter>, ... </invoke>."""
    return _functions(body, tools, _INVOKE, _NAMED)


def parse_pairs(body: str, tools: Tools) -> list[Call]:
    """NAME, then <arg_key>KEY</arg_key> <arg_value>value</arg_value> for each argument."""
    name, mark, rest = body.partition("<arg_key>")
    name = name.strip()
    if not re.fullmatch(r"[^\s<>{}\"]+", name):
        raise Malformed("no name")
    return [make(name, _arguments(mark + rest, tools, name, _PAIR))]


def _functions(
    body: str, tools: Tools, function: re.Pattern[str], parameter: re.Pattern[str]
) -> list[Call]:
    calls = []
    for match in _all(function, body):
        name = match[1].strip()
        calls.append(make(name, _arguments(match[2], tools, name, parameter)))
    if not calls:
        raise Malformed("no call")
    return calls


def _arguments(text: str, tools: Tools, name: str, pair: re.Pattern[str]) -> dict[str, Any]:
    found = {}
    for match in _all(pair, text):
        key = match[1].strip()
        value = match[2].removeprefix("\n").removesuffix("\n")
        found[key] = coerce(value, property_of(tools, name, key))
    return found


def _all(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Matches that follow each other to the end. Raises Malformed for other text between them."""
    matches = []
    at = 0
    while text[at:].strip():
        match = pattern.match(text, at)
        if match is None:
            raise Malformed("other text")
        matches.append(match)
        at = match.end()
    return matches
