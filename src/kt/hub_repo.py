"""A repository of the hub at one commit: its files as the hub lists them, and its place in this
machine's cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kt import hub_answer, settings
from kt.hub_errors import explained
from kt.transfer import RemoteFile

if TYPE_CHECKING:
    from kt.catalog import Entry

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
    DownloadError.
    """
    assert entry.repo
    with explained(entry):
        commit, files = hub_answer.ask(entry.repo, entry.revision, token)
    folder = cache_folder(entry.repo)
    repo = Repo(entry.repo, entry.revision or "main", commit, files, folder, token)
    repo.verified = read_verified(folder)
    return repo


def cache_folder(repo: str) -> Path:
    return settings.load().models / f"models--{repo.replace('/', '--')}"


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
