"""A repository of the hub at one commit: its files as the hub lists them, and its place in this
machine's cache.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kt.errors import DownloadError
from kt.hub_errors import Unreachable, explained
from kt.transfer import RemoteFile

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

    from kt.catalog import Entry

SILENT_SECONDS = 20.0
"""Without a byte of the hub's answer."""
ANSWER_SECONDS = 60.0
"""For the whole answer about a repository."""

VERIFIED = "kt-verified.json"
"""In a repository's cache folder: blob name -> [bytes, modification time in ns] when its hash was
right."""


@dataclass
class Repo:
    """A repository at one commit and its place in the cache."""

    name: str
    revision: str
    commit: str
    files: Mapping[str, RemoteFile]
    folder: Path
    token: str | None
    verified: dict[str, list[int]] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: file.size for name, file in self.files.items()}

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.commit

    def blob(self, name: str) -> Path:
        return self.folder / "blobs" / self.files[name].etag

    def missing(self, names: Iterable[str]) -> int:
        """Bytes of these files that are not here yet, not even in a partial file."""
        needed = 0
        for name in names:
            blob = self.blob(name)
            partial = blob.with_name(f"{blob.name}.incomplete")
            here = [path.stat().st_size for path in (blob, partial) if path.exists()]
            needed += max(0, self.files[name].size - sum(here))
        return needed


def find(entry: Entry, token: str | None) -> Repo:
    """Asks the hub for the commit and for names, sizes and hashes of the files. Raises
    DownloadError, also for an answer that no hub gives: names become paths here, and hashes
    names."""
    assert entry.repo
    try:
        with explained(entry):
            info = _asked(entry, token)
        files = {item.rfilename: _remote_file(item) for item in info.siblings or []}
        commit = _digest(info.sha, 40)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        from huggingface_hub import constants

        raise DownloadError(
            f"{constants.ENDPOINT} does not answer as a hub does "
            f"({type(error).__name__}: {str(error)[:200]})",
            hint="A proxy or a login page may answer in its place; check the network and "
            "HF_ENDPOINT.",
        ) from error
    folder = cache_folder(entry.repo)
    repo = Repo(entry.repo, entry.revision or "main", commit, files, folder, token)
    repo.verified = read_verified(folder)
    return repo


def _asked(entry: Entry, token: str | None) -> ModelInfo:
    """What the hub library makes of the answer. Its own limit is for a silent connection; one that
    drips would hold it for ever."""
    from huggingface_hub import HfApi

    found: list[ModelInfo | BaseException] = []

    def ask() -> None:
        try:
            api = HfApi(token=token)
            found.append(
                api.model_info(
                    entry.repo or "",
                    revision=entry.revision,
                    files_metadata=True,
                    timeout=SILENT_SECONDS,
                )
            )
        except BaseException as error:  # raised by whoever waits
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not found:
        raise Unreachable(
            f"the hub has not answered in {ANSWER_SECONDS:g} s", hint="Try again in a while."
        )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _remote_file(item: RepoSibling) -> RemoteFile:
    """Raises ValueError, TypeError."""
    name, size = item.rfilename, item.size
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in name:
        raise ValueError(f"a file is named {name[:100]!r}")
    if type(size) is not int or size < 0:
        raise ValueError(f"{name} has the size {size!r}")
    if item.lfs is not None:
        return RemoteFile(name, size, "", _digest(item.lfs.sha256, 64))
    return RemoteFile(name, size, _digest(item.blob_id, 40), None)


def _digest(text: str | None, length: int) -> str:
    """Raises ValueError, TypeError."""
    if text is None or not re.fullmatch(f"[0-9a-f]{{{length}}}", text):
        raise ValueError(f"{str(text)[:100]!r} is no hash of {length} digits")
    return text


def cache_folder(repo: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def is_verified(repo: Repo, name: str) -> bool:
    blob = repo.blob(name)
    return blob.exists() and repo.verified.get(blob.name) == stamp(blob)


def stamp(blob: Path) -> list[int]:
    status = blob.stat()
    return [status.st_size, status.st_mtime_ns]


def read_verified(folder: Path) -> dict[str, list[int]]:
    try:
        document = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # nothing verified yet: everything is hashed
    return document if isinstance(document, dict) else {}
