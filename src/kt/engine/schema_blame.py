"""Where in a JSON schema the trouble is of which llguidance tells without a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Path = tuple[str | int, ...]

MOST_TRIES: Final = 200
"""Parts of a schema that are tried; the place is then as near as they led."""

_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE: Final = ("items", "additionalProperties")
_SHARED: Final = ("$defs", "definitions", "x-guidance")


def place(schema: Mapping[str, Any], fails: Callable[[Any], bool]) -> str:
    """The innermost part with the same trouble, as ".properties.city"; "" for the whole schema.

    fails: whether a schema has that trouble, too.
    """
    shared = {key: schema[key] for key in _SHARED if key in schema}
    path: Path = ()
    part: Any = schema
    tries = 0
    seen = {path}
    while isinstance(part, dict):
        for path_, inner in _parts(schema, part, path):
            if path_ in seen:
                continue
            seen.add(path_)
            tries += 1
            if tries > MOST_TRIES:
                return _text(path)
            if fails({**shared, **inner} if isinstance(inner, dict) else inner):
                path, part = path_, inner
                break
        else:
            break
    return _text(path)


def _parts(root: Any, part: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """The schemas in a schema, and the one that it refers to, with their places."""
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found = _follow(root, reference)
        if found is not None:
            yield found
    for key in _NAMED:
        if isinstance(part.get(key), dict):
            yield from (((*path, key, name), inner) for name, inner in part[key].items())
    for key in _LISTED:
        if isinstance(part.get(key), list):
            yield from (((*path, key, i), inner) for i, inner in enumerate(part[key]))
    for key in _SINGLE:
        if key in part:
            yield (*path, key), part[key]


def _follow(root: Any, reference: str) -> tuple[Path, Any] | None:
    """What a reference such as "#/$defs/x" means; None where it means nothing."""
    names = reference[2:].split("/")
    for name in names:
        if not isinstance(root, dict) or name not in root:
            return None
        root = root[name]
    return tuple(names), root


def _text(path: Path) -> str:
    return "".join(
        f".{part}"
        if isinstance(part, str) and part.replace("$", "").isidentifier()
        else f"[{part!r}]"
        for part in path
    )
