"""A tool call, and how models spell its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Tools = Mapping[str, Mapping[str, Any]]
"""Function name -> JSON schema of its arguments."""


class Malformed(ValueError):
    """The text is no call in this form."""


class Unfinished(Malformed):
    """The text ends inside a string: what looked like the closing mark belongs to an argument."""


@dataclass(frozen=True)
class Call:
    """arguments: JSON text of an object. id: the model's own name of the call, if it gives one."""

    name: str
    arguments: str
    id: str = field(default="", compare=False)


def from_json(value: Any) -> Call:
    """A call from {"name": ..., "arguments" or "parameters": ...}. Raises Malformed."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise Malformed("no name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    return make(value["name"], arguments)


def make(name: str, arguments: Any, id_: str = "") -> Call:
    """Raises Malformed unless arguments is an object and there is a name."""
    if not name or not isinstance(arguments, dict):
        raise Malformed("the arguments are no object")
    try:
        return Call(name, json.dumps(arguments, ensure_ascii=False), id_)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None


def read_json(text: str) -> Any:
    """One JSON value and nothing behind it. Line breaks in strings are accepted."""
    values = list(json_values(text))
    if len(values) != 1:
        raise Malformed(f"{len(values)} values")
    return values[0]


def json_values(text: str) -> Iterator[Any]:
    """JSON values one after the other, with spaces, commas or semicolons between them."""
    decoder = json.JSONDecoder(strict=False)
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n;,":
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            unfinished = error.msg.startswith("Unterminated string")
            raise (Unfinished if unfinished else Malformed)(error.msg) from None
        except (ValueError, RecursionError) as error:
            raise Malformed(str(error)) from None
        yield value


def types_of(schema: Any) -> set[str]:
    """The JSON types that `schema` names for a value; empty if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set()
    if isinstance(named, list):
        types |= {name for name in named if isinstance(name, str)}
    for choice in ("anyOf", "oneOf"):
        options = schema.get(choice)
        for option in options if isinstance(options, list) else ():
            types |= types_of(option)
    enum = schema.get("enum")
    if not types and isinstance(enum, list) and enum and all(isinstance(v, str) for v in enum):
        types.add("string")
    return types


def coerce(text: str, schema: Any) -> Any:
    """An argument that came as bare text, as a value of its schema: strings stay what they are, the
    rest is read as JSON; what is none stays text.
    """
    types = types_of(schema)
    if types == {"string"}:
        return text
    trimmed = text.strip()
    if trimmed in ("True", "False", "None"):  # Python's spelling
        trimmed = {"True": "true", "False": "false", "None": "null"}[trimmed]
    try:
        value = read_json(trimmed)
    except Malformed:
        return text
    if "string" in types and not _allowed(value, types - {"string"}):
        return text
    return value


def _allowed(value: Any, types: set[str]) -> bool:
    kinds = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    return any(kinds.get(name, False) for name in types)


def property_of(tools: Tools, function: str, name: str) -> Any:
    """The schema of one argument, None if there is none."""
    properties = tools.get(function, {}).get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None
