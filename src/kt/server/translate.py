"""Helpers for requests in other APIs' forms, which become chat requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kt.server.errors import ApiError, from_validation

M = TypeVar("M", bound=BaseModel)


def text_of(content: Any, kinds: tuple[str, ...], where: str) -> str:
    """A string, or the text of parts of these kinds joined by newlines. Raises ApiError."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where} must be a text or a list of parts", param=where)
    texts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, dict) or part.get("type") not in kinds:
            kind = part.get("type") if isinstance(part, dict) else part
            message = f"{place} is {str(kind)[:64]!r}; kt reads {' and '.join(kinds)} only"
            raise ApiError(400, message, param=place, code="unsupported_field")
        if not isinstance(part.get("text"), str):
            raise ApiError(400, f"{place} has no text", param=place)
        texts.append(part["text"])
    return "\n".join(texts)


def validated(model: type[M], fields: Mapping[str, Any]) -> M:
    """A request of another form, checked. Raises ApiError."""
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        errors = [{**first, "loc": ("body", *first["loc"])} for first in error.errors()[:1]]
        raise from_validation(errors) from None
