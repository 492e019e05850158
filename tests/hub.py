"""A small hub on loopback that speaks as much of the Hugging Face HTTP API as a download needs.

What it serves can be changed while it runs, and it can cut connections, refuse access, and count
what it sent.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_MINIMUM = 1000  # files of at least so many bytes are served as LFS files


@dataclass
class Repo:
    """files: content by path. gated: only with the token "secret". cuts: after how many bytes the
    next bodies are dropped. lies: other content than announced. cdn: files are elsewhere. tells:
    changes what the hub says of it. drip: seconds between two bytes of that."""

    files: dict[str, bytes]
    gated: bool = False
    cuts: list[int] = field(default_factory=list)
    lies: dict[str, bytes] = field(default_factory=dict)
    ignore_range: bool = False
    cdn: bool = False
    tells: Callable[[Any], Any] = lambda info: info
    drip: float = 0.0

    @property
    def commit(self) -> str:
        parts = [
            f"{name}{hashlib.sha1(data).hexdigest()}" for name, data in sorted(self.files.items())
        ]
        return hashlib.sha1("".join(parts).encode()).hexdigest()


@dataclass
class Request:
    """What was asked for, and how many bytes of body were sent."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    sent: int = 0


class Hub:
    """`with Hub({"owner/name": Repo({...})}) as hub`: hub.url is its HF_ENDPOINT."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.requests: list[Request] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def sent(self, name: str) -> list[int]:
        """Body bytes of each GET of file `name`, in order."""
        return [r.sent for r in self.requests if r.method == "GET" and r.path.endswith(f"/{name}")]

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self._request = Request(
            self.command, path, self.headers.get("Range"), self.headers.get("Authorization")
        )
        self.hub.requests.append(self._request)
        parts = path.strip("/").split("/")
        if on_cdn := parts[0] == "cdn":
            parts = parts[1:]
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._refuse(401, "RepoNotFound")
        if repo.gated and not on_cdn and self.headers.get("Authorization") != "Bearer secret":
            return self._refuse(403, "GatedRepo")
        if api:
            return self._info(name, repo, parts[4:])
        if len(parts) > 4 and parts[2] == "resolve":
            if repo.cdn and not on_cdn:
                return self._redirect(f"/cdn{path}")
            return self._file(repo, parts[3], "/".join(parts[4:]))
        return self._refuse(404, "EntryNotFound")

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, path: str) -> None:
        """To another origin, as the hub does for large files."""
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_address[1]}{path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _info(self, name: str, repo: Repo, rest: list[str]) -> None:
        if rest and rest[1] not in ("main", repo.commit):
            return self._refuse(404, "RevisionNotFound")
        siblings = []
        for path, data in repo.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            item: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": blob}
            if len(data) >= LFS_MINIMUM:
                sha256 = hashlib.sha256(data).hexdigest()
                item["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 130}
            siblings.append(item)
        info = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        told = repo.tells(info)
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not repo.drip:
            self.wfile.write(body)
            return
        with suppress(OSError):  # whoever asked has left
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(repo.drip)

    def _file(self, repo: Repo, revision: str, name: str) -> None:
        if revision not in ("main", repo.commit):
            return self._refuse(404, "RevisionNotFound")
        if name not in repo.files:
            return self._refuse(404, "EntryNotFound")
        data = repo.lies.get(name, repo.files[name])
        first = 0
        if self._request.range and not repo.ignore_range:
            first = int(self._request.range.removeprefix("bytes=").partition("-")[0])
        body = data[first:]
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if repo.cuts and len(body) >= LFS_MINIMUM:
            body = body[: repo.cuts.pop(0)]
            self.close_connection = True
        self._request.sent = len(body)
        self.wfile.write(body)
