"""The route of the chat page, and what a browser may do with it."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

FILE = Path(__file__).with_name("index.html")


def policy(page: str) -> str:
    """The Content-Security-Policy under which only the page's own script and styles run.

    trusted-types: no text ever becomes HTML, whatever a model writes.
    """
    rules = [
        "default-src 'none'",
        f"script-src {_hashes(page, 'script')}",
        f"style-src {_hashes(page, 'style')}",
        "connect-src 'self'",
        "img-src 'self'",  # /favicon.ico
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return "; ".join(rules)


def _hashes(page: str, tag: str) -> str:
    """Content Security Policy Level 3, 2.3.1: the base64 SHA-256 of each inline element's text."""
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def add(app: FastAPI) -> None:
    """Serves the page at /, and an empty icon, which browsers ask for."""
    page = FILE.read_text(encoding="utf-8")
    headers = {
        "content-security-policy": policy(page),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",  # another kt may serve here tomorrow
    }
    body = page.encode()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        return Response(body, media_type="text/html; charset=utf-8", headers=headers)

    @app.api_route("/favicon.ico", methods=["GET", "HEAD"], include_in_schema=False)
    async def favicon() -> Response:
        return Response(status_code=204)
