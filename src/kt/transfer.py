"""One file from the hub to disk: resumed where it stopped, hashed as it arrives, moved into place
when right."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kt.errors import DownloadError

CHUNK = 1 << 20
MAX_FAILURES = 5
"""Connections in a row that bring nothing before kt gives up."""
RETRY_SECONDS = 1.0
"""Pause after the first failure; it doubles with each further one."""


class Damaged(DownloadError):
    """The bytes that arrived do not have the hash that the hub announced."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at one commit; sha256 is None for a small file kept in git itself."""

    path: str
    size: int
    git_sha1: str
    sha256: str | None

    @property
    def etag(self) -> str:
        """Its hash, and the name of its blob in the hub cache."""
        return self.sha256 or self.git_sha1

    def new_hash(self) -> Any:
        """A fresh hashlib object whose hex digest of the whole content is `etag`."""
        if self.sha256:
            return hashlib.sha256()
        # git hashes "blob <size>\0" before the content
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


def has_hash(path: Path, file: RemoteFile) -> bool:
    """Whether the bytes at `path` are those of `file`."""
    if path.stat().st_size != file.size:
        return False
    digest = file.new_hash()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
    return bool(digest.hexdigest() == file.etag)


class Transfer:
    """Brings `file` from `url` to `blob`, by way of BLOB.incomplete, which a later try continues.

    advance(n) is told of bytes that are there now (n < 0: that had to be thrown away). When `stop`
    is set, run() returns early and leaves the partial file.
    """

    def __init__(
        self,
        url: str,
        blob: Path,
        file: RemoteFile,
        *,
        headers: Mapping[str, str],
        advance: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        self.url = url
        self.blob = blob
        self.file = file
        self.headers = dict(headers) | {"Accept-Encoding": "identity"}
        self.advance = advance
        self.stop = stop
        self.partial = blob.with_name(blob.name + ".incomplete")
        self.digest = file.new_hash()
        self.done = 0

    def run(self) -> None:
        """Raises Damaged, DownloadError, or the hub's own HTTP errors (no such file, not
        allowed)."""
        failures = 0
        try:
            self._resume()
            with self.partial.open("ab") as target:
                while self.done < self.file.size and not self.stop.is_set():
                    before, problem = self.done, self._connect(target)
                    failures = 0 if self.done > before else failures + 1
                    if failures == MAX_FAILURES:
                        raise self._gave_up(problem)
                    if self.done < self.file.size:
                        self.stop.wait(RETRY_SECONDS * 2**failures)
                target.flush()
                os.fsync(target.fileno())
        except OSError as error:
            raise disk_error(error, self.blob.parent) from error
        if not self.stop.is_set():
            self._accept()

    def _resume(self) -> None:
        """Takes over what an earlier try left; a partial file longer than the whole is dropped."""
        if not self.partial.exists():
            return
        if self.partial.stat().st_size > self.file.size:
            self.partial.unlink()
            return
        with self.partial.open("rb") as source:
            while chunk := source.read(CHUNK):
                self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.done += len(chunk)
        self.advance(len(chunk))

    def _connect(self, target: Any) -> str:
        """One request for the missing rest; returns why it ended. Bytes that came stay, whatever
        the end."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        headers = dict(self.headers)
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
        try:
            with get_session().stream("GET", self.url, headers=headers, timeout=15) as response:
                if response.status_code in (408, 429) or response.status_code >= 500:
                    return f"the hub answered {response.status_code}"
                hf_raise_for_status(response)
                if self.done and response.status_code != 206:
                    self._start_over(target)
                for chunk in (
                    response.iter_bytes()
                ):  # as they arrive, so that none is lost with the connection
                    target.write(chunk)
                    self._count(chunk)
                    if self.stop.is_set():
                        return "stopped"
        except transport_errors() as error:
            if getattr(error, "response", None) is not None:
                raise
            return str(error) or type(error).__name__
        return "the connection closed early"

    def _start_over(self, target: Any) -> None:
        """The server ignored Range and sends the whole file."""
        target.seek(0)
        target.truncate()
        self.advance(-self.done)
        self.digest = self.file.new_hash()
        self.done = 0

    def _accept(self) -> None:
        if self.digest.hexdigest() == self.file.etag:
            os.replace(self.partial, self.blob)
            return
        self.partial.unlink()
        self.advance(-self.done)
        raise Damaged(
            f"{self.file.path} arrived damaged: its hash is not {self.file.etag}, "
            "which the hub announced",
            hint="Nothing of it was kept; try again.",
        )

    def _gave_up(self, problem: str) -> DownloadError:
        return DownloadError(
            f"{self.file.path}: no connection to the hub brought anything in {MAX_FAILURES} tries "
            f"({problem}); {self.done} of {self.file.size} bytes are here",
            hint="The same command continues where this one stopped.",
        )


def transport_errors() -> tuple[type[BaseException], ...]:
    """What the hub's HTTP client raises: the base classes of HfHubHTTPError, whichever client it
    uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__bases__ if base is not OSError)


def disk_error(error: OSError, folder: Path) -> BaseException:
    """A full disk in words; the hub's HTTP errors, which are OSErrors too, as they are."""
    if getattr(error, "response", None) is not None:
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk is full: cannot write more to {folder}",
            hint="Free some space, or move the cache with HF_HOME; then the same command goes on.",
        )
    return DownloadError(
        f"cannot write to {folder}: {error.strerror or error}",
        hint="HF_HOME or HF_HUB_CACHE names the folder of the cache.",
    )
