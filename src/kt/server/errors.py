"""Every failure as OpenAI's error object: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route

from kt.engine.request import (
    ContextTooLong,
    EngineClosed,
    InvalidGrammar,
    InvalidRequest,
    QueueFull,
)
from kt.errors import KtError, UsageError
from kt.server.faults import Fault, from_validation, meant
from kt.text.pieces import TextTooLong

log = logging.getLogger("kt.server")

RETRY_SECONDS = 1
"""What a client is told to wait when the queue is full."""

# Anthropic's names of failures, for /v1/messages.
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}

INTERNAL = "kt failed inside; the server's log has the place under this request's id"


class ApiError(HTTPException):
    """A failure that is told to the client. param: the request field; code: a short name."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.message = message
        self.param = param
        self.code = code

    def content(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, path: str = "") -> JSONResponse:
        """In the form of the API that `path` belongs to."""
        content = self.content()
        if path.startswith("/v1/messages"):
            error = {"type": kind_of(self.status_code), "message": self.message}
            content = {"type": "error", "error": error}
        return JSONResponse(content, self.status_code, self.headers)


def kind_of(status: int) -> str:
    """Anthropic's name of a failure."""
    return KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")


def from_kt(error: KtError, *, param: str | None = None) -> ApiError:
    """kt's own error: 400 if it blames the request or the field `param`, 429 if too many wait, else
    500 or 503.
    """
    message = f"{error.message}: {error.hint}" if error.hint else error.message
    if isinstance(error, QueueFull):
        headers = {"retry-after": str(RETRY_SECONDS)}
        return ApiError(429, message, code="queue_full", headers=headers)
    if isinstance(error, (ContextTooLong, TextTooLong)):
        return ApiError(400, message, param=param, code="context_length_exceeded")
    if isinstance(error, InvalidGrammar):
        return ApiError(400, message, param=error.param or param, code="invalid_value")
    if isinstance(error, (InvalidRequest, UsageError)) or param is not None:
        return ApiError(400, message, param=param, code="invalid_value")
    return ApiError(503 if isinstance(error, EngineClosed) else 500, message)


def internal(error: BaseException) -> ApiError:
    """Logs where `error` happened, but not its message, which may quote a prompt."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s in a request at\n%s", type(error).__name__, frames.rstrip())
    return ApiError(500, INTERNAL)


def from_fault(fault: Fault) -> ApiError:
    return ApiError(400, fault.message, param=fault.param, code=fault.code)


def _no_object(body: Any) -> ApiError:
    message = "the body must be a JSON object sent with Content-Type: application/json"
    if body is None:
        message = "the body is empty; it must be a JSON object"
    return ApiError(400, message, code="invalid_type")


def install(app: FastAPI) -> None:
    """Turns what FastAPI and Starlette raise (404, 405, validation) into OpenAI's error object."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        told = _no_object(error.body)
        if isinstance(error.body, dict):
            errors = [{**one, "loc": one["loc"][1:]} for one in error.errors()]  # behind "body"
            told = from_fault(from_validation(errors, error.body))
        return told.response(request.url.path)

    @app.exception_handler(Fault)
    async def faulty(request: Request, fault: Fault) -> JSONResponse:
        return from_fault(fault).response(request.url.path)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return error.response(request.url.path)
        message, code = str(error.detail), None
        if error.status_code == 404:
            path = request.url.path
            paths = [route.path for route in app.routes if isinstance(route, Route)]
            message = f"there is no {path[:256]} here; {meant(path, paths) or 'see /openapi.json'}"
            code = "unknown_url"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{request.method} is not allowed on {request.url.path}; use {allowed}"
            code = "method_not_allowed"
        headers = dict(error.headers) if error.headers else None
        told = ApiError(error.status_code, message, code=code, headers=headers)
        return told.response(request.url.path)

    @app.exception_handler(KtError)
    async def explained(request: Request, error: KtError) -> JSONResponse:
        return from_kt(error).response(request.url.path)
