"""Helpers for requests in other APIs' forms, which become chat requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from kt.server.faults import (
    Fault,
    Path,
    from_validation,
    missing,
    unsupported_part,
    wrong_type,
    wrong_value,
)

M = TypeVar("M", bound=BaseModel)

LONGEST_NAME: Final = 256


def text_of(content: Any, kinds: tuple[str, ...], *at: str | int) -> str:
    """A string, or the text of parts of these kinds joined by newlines. Raises Fault."""
    if isinstance(content, str):
        return content
    if content is None:
        raise missing(*at)
    if not isinstance(content, list):
        raise wrong_type("a string or an array of parts", content, *at)
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in kinds:
            raise unsupported_part(part, kinds, *at, index)
        texts.append(text_field(part, "text", *at, index))
    return "\n".join(texts)


def text_field(
    item: Mapping[str, Any], key: str, *at: str | int, default: str | None = None
) -> str:
    """A string of `item`, which is at this place. Raises Fault."""
    value = item.get(key, default)
    if value is None:
        raise missing(*at, key)
    if not isinstance(value, str):
        raise wrong_type("a string", value, *at, key)
    return value


def name_field(
    item: Mapping[str, Any], key: str, *at: str | int, default: str | None = None
) -> str:
    """A short one. Raises Fault."""
    value = text_field(item, key, *at, default=default)
    if len(value) > LONGEST_NAME or not (value or default == ""):
        raise wrong_value(f"expected 1 to {LONGEST_NAME} characters, got {len(value)}", *at, key)
    return value


def validated(model: type[M], fields: Mapping[str, Any], sent: Mapping[Path, Path]) -> M:
    """A request of another form, checked. sent: places in `fields` -> those in the request that was
    sent, where they differ. Raises Fault.
    """
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        fault = from_validation(error.errors(), fields)
        raise Fault(fault.code, fault.why, _original(fault.at, sent)) from None


def sent_places(
    named: Mapping[Path, Path], messages: Iterable[Path], tools: int
) -> dict[Path, Path]:
    """For `validated`. messages: where each is from. tools: how many there are; they are flat in
    the request that was sent.
    """
    sent = dict(named)
    sent.update({("messages", i): place for i, place in enumerate(messages)})
    sent.update({("tools", i, "function"): ("tools", i) for i in range(tools)})
    return sent


def _original(place: Path, sent: Mapping[Path, Path]) -> Path:
    for size in range(len(place), 0, -1):
        if place[:size] in sent:
            return sent[place[:size]] + place[size:]
    return place
