"""Frozen dataclasses to plain JSON values and back, driven by their type hints."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from kt.units import Choice


def encode(value: Any) -> Any:
    """JSON values of a dataclass: tuples become lists, sets sorted lists, a Choice an object."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Choice):
        return {"value": encode(value.value), "reason": value.reason}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(hint: Any, data: Any) -> Any:
    """The value of type `hint` that `encode` turned into `data`. Raises KeyError, TypeError or
    ValueError where the data does not fit the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if data is None else decode(inner, data)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        values = {f.name: decode(hints[f.name], data[f.name]) for f in fields(hint)}
        return hint(**values)  # type: ignore[operator]  # a class, not an instance
    if origin is Choice:
        return Choice(decode(arguments[0], data["value"]), _scalar(str, data["reason"]))
    if origin is frozenset:
        return frozenset(decode(arguments[0], item) for item in _scalar(list, data))
    if origin is tuple:
        items = _scalar(list, data)
        if arguments[-1] is Ellipsis:
            return tuple(decode(arguments[0], item) for item in items)
        return tuple(decode(a, item) for a, item in zip(arguments, items, strict=True))
    if hint is float and type(data) is int:
        return float(data)
    return _scalar(hint, data)


def _scalar(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {data!r}")
    return data
