"""What is wrong with a request, in OpenAI's words: Invalid type for 'n': expected ..., got ...

pydantic's words are those of Python's programmers; `from_validation` is where they become these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Path = tuple[str | int, ...]
"""A place in a request: ("messages", 0, "role")."""

_HEADS: Final = {
    "missing_required_parameter": "Missing required parameter: {}.",
    "unknown_parameter": "Unknown parameter: {}.",
    "unsupported_parameter": "Unsupported parameter: {}.",
    "invalid_type": "Invalid type for {}:",
    "invalid_value": "Invalid value for {}:",
}

# pydantic's kind of error -> what was expected.
_TYPES: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
# The same, with the names of pydantic's context. What was got is told behind it.
_VALUES: Final = {
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "string_pattern_mismatch": "expected a text that matches {pattern}",
    "string_too_long": "expected at most {max_length} characters",
    "string_too_short": "it must not be empty",
    "too_long": "expected at most {max_length} items",
    "too_short": "it must not be empty",
}
_SHOWN: Final = 64


class Fault(ValueError):
    """code: one of OpenAI's, a key of _HEADS. why: the rest of the sentence. at: the place.

    In a pydantic validator `at` begins at the validator's own field.
    """

    def __init__(self, code: str, why: str = "", at: Path = ()) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.at = at

    @property
    def param(self) -> str | None:
        return path_text(self.at) or None

    @property
    def message(self) -> str:
        if not self.at:
            return f"{_capital(self.why)}."
        head = _HEADS[self.code].format(f"'{self.param}'")
        if not self.why:
            return head
        why = _capital(self.why) if head.endswith(".") else self.why
        return f"{head} {why}{'' if why.endswith('?') else '.'}"


def missing(*at: str | int) -> Fault:
    return Fault("missing_required_parameter", "", at)


def wrong_type(expected: str, value: Any, *at: str | int) -> Fault:
    """expected: with its article."""
    return Fault("invalid_type", f"expected {expected}, got {_kind(value)}", at)


def wrong_value(why: str, *at: str | int) -> Fault:
    return Fault("invalid_value", why, at)


def unsupported(why: str, *at: str | int) -> Fault:
    return Fault("unsupported_parameter", why, at)


def unknown(name: str, known: Iterable[str], hint: str = "") -> Fault:
    """known: names of which some may have been meant. hint: said instead of these."""
    return Fault("unknown_parameter", hint or meant(name, known), (name[:_SHOWN],))


def meant(name: str, known: Iterable[str]) -> str:
    """A question, "" if nothing is similar."""
    similar = difflib.get_close_matches(name[:_SHOWN], list(known), n=3, cutoff=0.6)
    return f"did you mean {listed(map(repr, similar))}?" if similar else ""


def unsupported_part(part: Any, kinds: Sequence[str], *at: str | int) -> Fault:
    """For a part of a content that has none of these types."""
    if not isinstance(part, dict):
        return wrong_type("an object", part, *at)
    if part.get("type") is None:
        return missing(*at, "type")
    if not isinstance(part["type"], str):
        return wrong_type("a string", part["type"], *at, "type")
    return unsupported(f"only {listed(kinds, 'and')} can be read, not {shown(part['type'])}", *at)


def path_text(place: Path) -> str:
    """("messages", 0, "role") -> "messages[0].role"."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def listed(words: Iterable[str], joint: str = "or") -> str:
    """ "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


def shown(value: Any) -> str:
    """A value, shortened, or what kind it is."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        text = str(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return _kind(value)


def from_validation(errors: Sequence[Mapping[str, Any]], body: Any) -> Fault:
    """The first of pydantic's complaints about `body`. Their "loc" begins in it."""
    found = [(_place(error, body), error) for error in errors]
    first = found[0][0]
    # A union of types complains once for each: the one that got furthest was meant.
    same = [(place, error) for place, error in found if place[: len(first)] == first]
    place, error = max(same, key=lambda one: len(one[0]))
    kinds = [_TYPES[one["type"]] for at, one in same if at == place and one["type"] in _TYPES]
    if kinds and error["type"] in _TYPES:
        return wrong_type(listed(dict.fromkeys(kinds)), error["input"], *place)
    return _fault(error, place)


def _fault(error: Mapping[str, Any], place: Path) -> Fault:
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "missing":
        return missing(*place)
    own = context.get("error")
    if isinstance(own, Fault):
        return Fault(own.code, own.why, (*place, *own.at))
    if own is not None:
        return wrong_value(str(own), *place)
    if kind not in _VALUES:
        return wrong_value(str(error["msg"]), *place)
    expected = _VALUES[kind].format(**{name: _short(limit) for name, limit in context.items()})
    if kind.endswith("too_short"):  # the bound is 1 everywhere
        return wrong_value(expected, *place)
    if kind.endswith("too_long"):
        return wrong_value(f"{expected}, got {len(value or '')}", *place)
    return wrong_value(f"{expected}, got {shown(value)}", *place)


def _place(error: Mapping[str, Any], body: Any) -> Path:
    """Where it is in `body`. Branches of unions are in pydantic's location, but are no place."""
    place: list[str | int] = []
    location: Path = error["loc"]
    for i, part in enumerate(location):
        inside = isinstance(body, dict) and part in body
        if inside or (isinstance(body, list) and isinstance(part, int) and part < len(body)):
            body = body[part]
            place.append(part)
        elif error["type"] == "missing" and i == len(location) - 1:
            place.append(part)
    return tuple(place)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(limit: Any) -> Any:
    """2.0 as 2."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _kind(value: Any) -> str:
    names = {bool: "a boolean", str: "a string", int: "an integer", float: "a decimal number"}
    names |= {list: "an array", tuple: "an array", dict: "an object"}
    return names.get(type(value), "null")
