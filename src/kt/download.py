"""A repository of the hub -> verified files in the Hugging Face cache of this machine.

The cache is the hub library's own (HF_HOME, HF_HUB_CACHE), so files that other programs fetched are
used and the other way round. Each blob is hashed once; what was verified is noted beside it with
size and modification time, so that a file that changed since is hashed again, and fetched again if
it is not what the hub announced.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kt import hub_files
from kt.errors import DownloadError, KtError
from kt.hub_answer import authorization
from kt.hub_errors import Unreachable, explained
from kt.hub_repo import VERIFIED, Repo, cache_folder, find, is_verified, stamp
from kt.transfer import Damaged, Transfer, disk_error, has_hash
from kt.units import format_bytes

if TYPE_CHECKING:
    from kt.catalog import Entry

CONNECTIONS = 4
STOPPED = "what has arrived stays, and the same command goes on from there"
"""What an interrupt means for a download."""

Progress = Callable[[int, int], None]


def fetch(
    entry: Entry,
    *,
    token: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    admit: Callable[[int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Path:
    """Downloads what `entry.repo` needs and is not here yet; returns its folder, or its (first)
    GGUF file.

    progress(done, total) counts bytes, those already here included. admit(bytes) is asked before
    weights of that size are fetched, and may raise. Without a connection what is in the cache is
    used, with a word to `warn`. Raises DownloadError, UsageError (which of several GGUF files?),
    ModelError.
    """
    if offline:
        return _from_cache(entry, "HF_HUB_OFFLINE is set")
    try:
        repo = find(entry, token)
    except Unreachable as error:
        path = _from_cache(entry, error.message)
        if warn:
            warn(f"{error.message}; running what is in the cache")
        return path
    try:
        with explained(entry):
            return _bring(
                repo, entry, progress or (lambda done, total: None), admit or (lambda size: None)
            )
    except OSError as error:
        raise disk_error(error, repo.folder) from error


@dataclass(frozen=True)
class Preview:
    """What `fetch` would bring. weights, others: bytes by name. missing: bytes of all of them that
    are not here yet. folder: where they go.
    """

    repo: str
    commit: str
    weights: Mapping[str, int]
    others: Mapping[str, int]
    missing: int
    folder: Path


def preview(entry: Entry, *, token: str | None = None) -> Preview:
    """Asks the hub only for names and sizes, and nothing is written. Raises as `fetch` does."""
    repo = find(entry, token)
    others: list[str] = []
    if hub_files.wants_gguf(repo.sizes, entry.files):
        weights = hub_files.gguf_files(repo.sizes, entry.files, repo.name)
    else:
        others = hub_files.small_files(repo.sizes)
        with explained(entry), tempfile.TemporaryDirectory() as folder:
            if hub_files.INDEX in repo.files:
                _read_small(repo, hub_files.INDEX, Path(folder))
            weights = hub_files.safetensors_files(repo.sizes, Path(folder), repo.name)
    return Preview(
        repo.name,
        repo.commit,
        {name: repo.sizes[name] for name in weights},
        {name: repo.sizes[name] for name in others},
        repo.missing([*weights, *others]),
        repo.folder,
    )


def is_cached(entry: Entry) -> bool:
    """Whether all files that `entry` needs are in the cache (no network, no hashing)."""
    try:
        _from_cache(entry, "")
    except KtError:
        return False
    return True


def _bring(repo: Repo, entry: Entry, progress: Progress, admit: Callable[[int], None]) -> Path:
    if hub_files.wants_gguf(repo.sizes, entry.files):
        weights = hub_files.gguf_files(repo.sizes, entry.files, repo.name)
    else:
        _bring_files(repo, hub_files.small_files(repo.sizes), lambda done, total: None)
        weights = hub_files.safetensors_files(repo.sizes, repo.snapshot, repo.name)
    admit(sum(repo.files[name].size for name in weights))
    _bring_files(repo, weights, progress)
    # The branch is pointed at this commit only now that all of it is here, so that offline use
    # never finds a part.
    ref = repo.folder / "refs" / repo.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(repo.commit, encoding="utf-8")
    _drop_stale_partials(repo)
    return repo.snapshot / weights[0] if weights[0].endswith(".gguf") else repo.snapshot


def _bring_files(repo: Repo, names: Sequence[str], progress: Progress) -> None:
    """Makes every file present, verified and linked into the snapshot."""
    total = sum(repo.files[name].size for name in names)
    lock, done, stop = threading.Lock(), [0], threading.Event()

    def advance(count: int) -> None:
        with lock:
            done[0] += count
            progress(done[0], total)

    missing = []
    for name in names:
        if is_verified(repo, name):
            advance(repo.files[name].size)
        else:
            missing.append(name)
    _check_disk(repo, missing)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        futures = [pool.submit(_bring_file, repo, name, advance, stop) for name in missing]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
    for name in names:
        _note_verified(repo, name)
        _link(repo, name)
    _write_verified(repo)


def _read_small(repo: Repo, name: str, folder: Path) -> None:
    """Puts one file into `folder`, outside of the cache."""

    def nobody(count: int) -> None:
        pass

    url, headers = _address(repo, name)
    file, never = repo.files[name], threading.Event()
    Transfer(url, folder / name, file, headers=headers, advance=nobody, stop=never).run()


def _address(repo: Repo, name: str) -> tuple[str, dict[str, str]]:
    """A file's URL, and the headers that go with it."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repo.name, name, revision=repo.commit), authorization(repo.token)


def _bring_file(
    repo: Repo, name: str, advance: Callable[[int], None], stop: threading.Event
) -> None:
    from filelock import FileLock

    if stop.is_set():
        return
    file, blob = repo.files[name], repo.blob(name)
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = repo.folder.parent / ".locks" / repo.folder.name / f"{file.etag}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    url, headers = _address(repo, name)
    with FileLock(lock):  # two processes may want the same model
        if blob.exists():
            if has_hash(blob, file):
                advance(file.size)
                return
            blob.unlink()  # zeroed, cut short or otherwise not what the hub announced
        try:
            Transfer(url, blob, file, headers=headers, advance=advance, stop=stop).run()
        except Damaged:
            # What an earlier try left may be what is damaged, after a power cut say: once more,
            # from the start.
            Transfer(url, blob, file, headers=headers, advance=advance, stop=stop).run()


def _check_disk(repo: Repo, names: Sequence[str]) -> None:
    needed = repo.missing(names)
    # Made first: what cannot be made has another reason than a lack of space.
    repo.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(repo.folder).free
    if needed > free:
        raise DownloadError(
            f"{repo.name} needs {needed} bytes more on disk ({format_bytes(needed)}), "
            f"and {repo.folder} has {free} free ({format_bytes(free)})",
            hint="Free some space, or move the cache to a larger disk with HF_HOME.",
        )


def _link(repo: Repo, name: str) -> None:
    """snapshots/COMMIT/NAME -> the blob, as the hub library lays out its cache."""
    pointer = repo.snapshot / name
    if pointer.exists():
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    blob = repo.blob(name)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:  # a file system without links
        shutil.copy2(blob, pointer)


def _drop_stale_partials(repo: Repo) -> None:
    """Partial files of contents that this repository no longer has."""
    current = {f"{file.etag}.incomplete" for file in repo.files.values()}
    for partial in (repo.folder / "blobs").glob("*.incomplete"):
        if partial.name not in current and partial.name.count(".") == 1:
            partial.unlink(missing_ok=True)


def _note_verified(repo: Repo, name: str) -> None:
    blob = repo.blob(name)
    repo.verified[blob.name] = stamp(blob)


def _write_verified(repo: Repo) -> None:
    temporary = repo.folder / f"{VERIFIED}.{os.getpid()}"
    temporary.write_text(json.dumps(repo.verified), encoding="utf-8")
    os.replace(temporary, repo.folder / VERIFIED)


def _from_cache(entry: Entry, why: str) -> Path:
    """What the cache holds of `entry`, complete. Raises DownloadError that begins with `why`."""
    assert entry.repo
    folder = cache_folder(entry.repo)
    revision = entry.revision or "main"
    ref = folder / "refs" / revision
    snapshot = folder / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
    present = [path for path in snapshot.rglob("*") if path.is_file()]
    if not present:
        raise DownloadError(
            f"{why}, and {entry.repo} is not in the cache ({folder.parent})",
            hint="Connect once to download it, or give the path of a model on this machine.",
        )
    sizes = {str(path.relative_to(snapshot)): path.stat().st_size for path in present}
    if hub_files.wants_gguf(sizes, entry.files):
        return snapshot / hub_files.gguf_files(sizes, entry.files, entry.repo)[0]
    hub_files.safetensors_files(sizes, snapshot, entry.repo)
    return snapshot
