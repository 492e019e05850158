"""The application: which path does what."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

import kt
from kt.engine.engine import Engine
from kt.server import chat, completions, errors
from kt.server.chat_form import ChatForm
from kt.server.chat_request import ChatRequest
from kt.server.completion_request import CompletionRequest
from kt.server.errors import ApiError
from kt.server.gate import MAX_BODY, Gate
from kt.server.generation import Generations, Task, in_thread
from kt.server.profile import Profile, profile_of
from kt.server.stream import respond

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer

# What info holds for the server itself.
HIDDEN = frozenset({"aliases", "tool_form", "reasoning_form"})
# Bodies above this many bytes are parsed in a thread.
SMALL_BODY = 1 << 16


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    info: dict[str, Any],
    *,
    api_keys: Sequence[str] = (),
    max_body: int = MAX_BODY,
) -> FastAPI:
    """The OpenAI-compatible application over a started engine.

    info["model"] is the name that is served and info["aliases"] (optional) are other names that
    requests may use for it; all of info but the aliases is shown by /health. api_keys: any of them
    lets a request in.
    """
    app = FastAPI(
        title="kt",
        version=kt.__version__,
        docs_url=None,  # its page loads scripts from the internet
        redoc_url=None,
    )
    app.router.route_class = JsonRoute
    app.add_middleware(Gate, api_keys=api_keys, max_body=max_body)
    errors.install(app)
    app.state.api_keys = tuple(api_keys)
    app.state.model = info["model"]
    app.state.generations = Generations(engine)
    app.state.profile = profile_of(tokenizer.template, info)
    _add_information(app, engine, info)
    _add_generation(app, tokenizer, info)
    return app


def _add_information(app: FastAPI, engine: Engine, info: dict[str, Any]) -> None:
    started = int(time.time())
    card = {
        "id": info["model"],
        "object": "model",
        "created": started,
        "owned_by": "kt",
        "max_model_len": engine.limit,  # an extension: tokens of prompt and answer together
    }
    shown = {name: value for name, value in info.items() if name not in HIDDEN}
    shown["answers"] = app.state.profile.described()

    @app.get("/health")
    async def health() -> dict[str, Any]:
        stats = asdict(engine.stats())
        return {"status": "ok", "version": kt.__version__, **shown, "stats": stats}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _check_model(name, info)
        return card


def _add_generation(app: FastAPI, tokenizer: Tokenizer, info: dict[str, Any]) -> None:
    generations: Generations = app.state.generations
    profile: Profile = app.state.profile

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        _check_model(body.model, info)
        turn = await in_thread("messages", lambda: chat.prepare(tokenizer, profile, body))
        answers = generations.submit(turn.task, body, http.state.request_id)
        form = ChatForm(tokenizer, turn, body.logprobs)
        return await respond(http, body, answers, form, info["model"])

    @app.post("/v1/completions")
    async def text_completions(body: CompletionRequest, http: Request) -> Response:
        _check_model(body.model, info)
        prompts = await in_thread("prompt", lambda: completions.prompt_ids(tokenizer, body))
        answers = generations.submit(Task(prompts), body, http.state.request_id)
        form = completions.CompletionForm(tokenizer, body.logprobs is not None)
        return await respond(http, body, answers, form, info["model"])


def _check_model(name: str, info: dict[str, Any]) -> None:
    if name != info["model"] and name not in info.get("aliases", ()):
        message = f"the model {name[:256]!r} is not served here; {info['model']!r} is"
        raise ApiError(404, message, param="model", code="model_not_found")


class JsonRoute(APIRoute):
    """A route whose JSON bodies are parsed by `parse_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

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
        raise ApiError(400, f"the body is not valid JSON: {error.msg} at {place}") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise ApiError(400, "the body holds half of a surrogate pair, not a character") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
