"""A tool call, and how models spell its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Tools = Mapping[str, Mapping[str, Any]]
"""Function name -> JSON schema of its arguments."""


class Malformed(ValueError):
    """The text is no call in this form."""


@dataclass(frozen=True)
class Call:
    """arguments: JSON text of an object. id: the model's own name of the call, if it gives one.
    whole: False if the model broke off or left the form; then arguments are the beginning of what
    they would have been.
    """

    name: str
    arguments: str
    id: str = field(default="", compare=False)
    whole: bool = True


@dataclass(frozen=True)
class CallStart:
    """A call begins; its arguments follow. See Call."""

    name: str
    id: str = ""


@dataclass(frozen=True)
class CallText:
    """The next piece of the arguments."""

    text: str


@dataclass(frozen=True)
class CallEnd:
    """The call is over. See Call."""

    whole: bool


CallPiece = CallStart | CallText | CallEnd


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
        value = json.loads(trimmed, strict=False)
    except (ValueError, RecursionError):
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
