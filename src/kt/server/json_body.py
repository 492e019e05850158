"""JSON bodies, strictly, and large ones off the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from kt.server.errors import ApiError

# Bodies above this many bytes are parsed in a thread.
SMALL_BODY = 1 << 16
TOO_DEEP = "the body is nested too deeply"


class JsonRoute(APIRoute):
    """A route whose JSON bodies are parsed by `parse_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(_JsonRequest(request.scope, request.receive))
            except RecursionError:  # of what reads the parsed body, which nests less deeply
                raise _invalid(TOO_DEEP) from None

        return handle


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= SMALL_BODY:
            return parse_json(body)
        return await asyncio.to_thread(parse_json, body)


def parse_json(body: bytes) -> Any:
    """JSON as the standard has it: UTF-8, no NaN, no half of a surrogate pair. Raises ApiError."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _invalid(f"the body is not valid JSON: {error.msg} at {place}") from None
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise _invalid("the body holds half of a surrogate pair, not a character") from None
    except RecursionError:
        raise _invalid(TOO_DEEP) from None
    except ValueError as error:
        raise _invalid(f"the body is not valid JSON: {error}") from None
    return value


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
