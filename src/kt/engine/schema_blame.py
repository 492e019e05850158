"""Where in a JSON schema the trouble is of which llguidance tells without a place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Path = tuple[str | int, ...]

SECONDS: Final = 1.0
"""After so long no further part is tried; the place is then as near as they led."""

_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE: Final = ("items", "additionalProperties")
_SHARED: Final = ("$defs", "definitions", "x-guidance")


def place(schema: Any, fails: Callable[[Any], bool]) -> str:
    """The innermost part with the same trouble, as ".properties.city"; "" for the whole schema.

    fails: whether a schema has that trouble, too.
    """
    if not isinstance(schema, dict):
        return ""
    shared = {key: schema[key] for key in _SHARED if key in schema}
    path: Path = ()
    part: Any = schema
    end = time.monotonic() + SECONDS
    seen = {path}
    while isinstance(part, dict):
        for path_, inner in _parts(schema, part, path):
            referred = _referred(schema, inner)
            if path_ in seen or (referred is not None and referred[0] in seen):
                continue  # what refers back to it fails as well
            seen.add(path_)
            if time.monotonic() > end:
                return _text(path)
            if fails({**shared, **inner} if isinstance(inner, dict) else inner):
                path, part = path_, inner
                break
        else:
            break
    return _text(path)


def _parts(root: Any, part: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """The schemas in a schema, and the one that it refers to, with their places."""
    referred = _referred(root, part)
    if referred is not None:
        yield referred
    for key in _NAMED:
        if isinstance(part.get(key), dict):
            yield from (((*path, key, name), inner) for name, inner in part[key].items())
    for key in _LISTED:
        if isinstance(part.get(key), list):
            yield from (((*path, key, i), inner) for i, inner in enumerate(part[key]))
    for key in _SINGLE:
        if key in part:
            yield (*path, key), part[key]


def _referred(root: Any, part: Any) -> tuple[Path, Any] | None:
    """What "$ref": "#/$defs/x" means; None where there is none, or where it means nothing."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    names = tuple(reference[2:].split("/"))
    for name in names:
        if not isinstance(root, dict) or name not in root:
            return None
        root = root[name]
    return names, root


def _text(path: Path) -> str:
    return "".join(
        f".{part}"
        if isinstance(part, str) and part.replace("$", "").isidentifier()
        else f"[{part!r}]"
        for part in path
    )
