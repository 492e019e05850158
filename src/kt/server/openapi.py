"""The server's own description, which tells its errors as they are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "type": _TEXT, "param": _TEXT, "code": _TEXT},
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_REFUSALS = {
    "400": "The request is not valid",
    "401": "The API key is missing or wrong",
    "403": "The Host is not a local name",
    "404": "There is no such model",
    "413": "The body is too large",
    "429": "Too many requests are waiting",
    "500": "kt failed",
    "503": "The server is shutting down",
    "504": "The answer took too long",
}


def install(app: FastAPI) -> None:
    """FastAPI documents a 422 that this server never sends; it sends these."""
    made: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not made:
            made.update(get_openapi(title=app.title, version=app.version, routes=app.routes))
            _correct(made)
        return made

    app.openapi = describe  # type: ignore[method-assign]


def _correct(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for operations in document["paths"].values():
        for method, operation in operations.items():
            answers = operation["responses"]
            answers.pop("422", None)
            for status, text in _REFUSALS.items():
                if method == "post" or status in ("401", "403", "404", "500"):
                    answers[status] = {"description": text, "content": content}
