"""The application: which path does what."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.middleware.cors import CORSMiddleware

import kt
from kt.engine.engine import Engine
from kt.errors import UsageError
from kt.server import errors, openapi, routes
from kt.server.gate import MAX_BODY, Gate
from kt.server.generation import Generations
from kt.server.json_body import JsonRoute
from kt.server.metrics import CONTENT_TYPE, Metrics
from kt.server.profile import profile_of
from kt.server.sampling_defaults import SamplingDefaults
from kt.server.service import Service
from kt.server.web import page

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer

# What info holds for the server itself.
HIDDEN = frozenset({"aliases", "tool_form", "reasoning_form"})


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    info: dict[str, Any],
    *,
    api_keys: Sequence[str] = (),
    max_body: int = MAX_BODY,
    defaults: SamplingDefaults | None = None,
    timeout: float | None = None,
    cors: Sequence[str] = (),
) -> FastAPI:
    """The application over a started engine.

    info["model"] is the name that is served; info["aliases"] (optional) are other names that
    requests may use for it; info["tool_form"] and info["reasoning_form"] (optional) override what
    the chat template shows; the rest of info is shown by /health. api_keys: any of them lets a
    request in. defaults: sampling for requests that say nothing. timeout: seconds an answer may
    take. cors: origins whose web pages may use the server. Raises ModelError, UsageError.
    """
    app = FastAPI(
        title="kt",
        version=kt.__version__,
        docs_url=None,  # its page loads scripts from the internet
        redoc_url=None,
    )
    app.router.route_class = JsonRoute
    app.add_middleware(Gate, api_keys=api_keys, max_body=max_body)
    _add_cors(app, cors, api_keys)
    errors.install(app)
    defaults = defaults or SamplingDefaults()
    metrics = Metrics(engine)
    generations = Generations(engine, metrics, defaults=defaults, timeout=timeout)
    profile = profile_of(tokenizer.template, info)
    service = Service(engine, tokenizer, info, profile, generations)
    app.state.api_keys = tuple(api_keys)
    app.state.model, app.state.names = service.model, service.names
    app.state.generations = generations
    _add_information(app, service, metrics, defaults)
    routes.add_openai(app, service)
    routes.add_anthropic(app, service)
    routes.add_tokens(app, service)
    page.add(app)
    openapi.install(app)
    return app


def _add_cors(app: FastAPI, origins: Sequence[str], api_keys: Sequence[str]) -> None:
    check_cors(origins, api_keys)
    if not origins:
        return
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


def check_cors(origins: Sequence[str], api_keys: Sequence[str]) -> None:
    """Raises UsageError for what is no origin, and for origins that would open the server to
    everybody."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s\[\]]+|null", origin):
            raise UsageError(
                f"--cors {origin!r} is no origin", hint="for example https://chat.example.org:8443"
            )
    if "*" in origins and not api_keys:
        raise UsageError(
            "with --cors '*' every web page could use this server",
            hint="give it --api-key KEY, or name the origins",
        )


def _add_information(
    app: FastAPI, service: Service, metrics: Metrics, defaults: SamplingDefaults
) -> None:
    engine = service.engine
    card = {
        "id": service.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "kt",
        "max_model_len": engine.limit,  # an extension: tokens of prompt and answer together
    }
    shown = {name: value for name, value in service.info.items() if name not in HIDDEN}
    shown |= {"answers": service.profile.described(), "sampling": defaults.described()}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        stats = asdict(engine.stats())
        stats["prefill_chunk"] = stats["prefill_chunk"]._asdict()  # a choice, like those of a plan
        return {"status": "ok", "version": kt.__version__, **shown, "stats": stats}

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return card
