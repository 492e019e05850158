"""The folder of a conversion: whose it is, what is finished in it, and how files come into it.

Every file is written as NAME.partial, forced to the disk, read back, and renamed.
kt_conversion.json lists the finished ones; it becomes kt_manifest.json at the end. So a conversion
can be killed at any moment and continued, and no reader ever sees half of anything.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kt.errors import KtError, UsageError
from kt.units import format_bytes
from kt.weights.packed_folder import MANIFEST, UNFINISHED, checked_files, checksum

PARTIAL: Final = ".partial"
CHUNK: Final = 1 << 20


class Destination:
    """identity: what the conversion is of (source, format, options), as JSON values. files: the
    finished files' records by name. finished: all is done.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        """Takes the folder over, made if need be. Raises UsageError if it holds something else."""
        self.folder = folder
        self.identity = identity
        self.files: dict[str, dict[str, Any]] = {}
        self.finished = False
        with _disk_errors(folder, "Choose another folder."):
            self._take_over()

    def _take_over(self) -> None:
        _check_foreign(self.folder)
        for name in (MANIFEST, UNFINISHED):
            if (self.folder / name).is_file():
                self._adopt(self.folder / name)
                # A file that is gone, because it was damaged say, is made again.
                whole = all(self.has(file, row["bytes"]) for file, row in self.files.items())
                self.finished = name == MANIFEST and whole
                break
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def manifest(self) -> dict[str, Any]:
        """What kt_manifest.json says, or will."""
        content = self.identity | {"files": self.files}
        return content | {"checksum": checksum(content)}

    def has(self, name: str, nbytes: int) -> bool:
        """Whether file `name` was finished and is still there; its bytes are not compared."""
        path = self.folder / name
        there = name in self.files and path.is_file() and path.stat().st_size == nbytes
        return there and os.access(path, os.R_OK)

    def check_room(self, nbytes: int) -> None:
        """Raises KtError if the disk has no room for `nbytes` more."""
        with _disk_errors(self.folder):
            disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if nbytes > free:
            raise KtError(
                f"the conversion needs {nbytes} bytes more ({format_bytes(nbytes)}) in "
                f"{self.folder}, and {free} are free ({format_bytes(free)})",
                hint="Free some space, or choose another folder.",
            )

    def clear(self, names: Iterable[str]) -> None:
        """Removes what a stopped run left of files that are not finished: they are made again, and
        would take the room for that. Raises KtError.
        """
        with _disk_errors(self.folder):
            for name in names:
                for left in (name, name + PARTIAL):
                    (self.folder / left).unlink(missing_ok=True)

    def write(self, name: str, nbytes: int, parts: Iterable[Any]) -> str:
        """A file of `nbytes` out of `parts`; returns its sha256. Raises KtError for a full disk and
        the like; nothing of it stays then.
        """
        path = self.folder / name
        partial = path.with_name(name + PARTIAL)
        try:
            with _disk_errors(self.folder):
                digest = _write(partial, parts)
                if partial.stat().st_size != nbytes or hash_file(partial) != digest:
                    raise KtError(
                        f"{partial} does not hold what was written to it",
                        hint="Check the disk: `dmesg`, smartctl. The same command tries again.",
                    )
                os.replace(partial, path)
                _sync_folder(self.folder)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        return digest

    def begin(self) -> None:
        """Marks the folder as this conversion's, before the first file."""
        if not self.files:
            self._save(UNFINISHED)

    def record(self, name: str, record: dict[str, Any]) -> None:
        """Notes that file `name` is finished."""
        self.files[name] = record
        self._save(UNFINISHED)

    def finish(self) -> None:
        """Makes the folder a model."""
        self._save(MANIFEST)
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        self.finished = True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises KtError if another process converts into this folder."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise KtError(
                    f"another process converts into {self.folder}", hint="Wait for its end."
                ) from None
            yield
        finally:
            os.close(handle)

    def _adopt(self, path: Path) -> None:
        try:
            document = json.loads(path.read_bytes())
            files = checked_files(document)
            document.pop("config", None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{path} cannot be read: {error}", hint="Delete the folder, or choose another."
            ) from None
        ours = {key: value for key, value in self.identity.items() if key != "config"}
        differs = [key for key in ours if document.get(key) != ours[key]]
        if differs:
            key = differs[0]
            there, here = document.get(key), ours[key]
            if key == "source":
                there, here = (str((source or {}).get("name")) for source in (there, here))
            raise UsageError(
                f"{path.parent} holds another conversion: {key} is {there!r} there and {here!r} "
                f"here{' (other bytes)' if there == here else ''}",
                hint="Choose another folder, or delete that one.",
            )
        self.files = files

    def _save(self, name: str) -> None:
        text = json.dumps(self.manifest, indent=1, ensure_ascii=True)
        self.write(name, len(text) + 1, [text.encode() + b"\n"])


def hash_file(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_foreign(folder: Path) -> None:
    if not folder.exists():
        if folder.is_symlink():
            raise UsageError(
                f"{folder} is a link to what is not there", hint="Name a folder that is new."
            )
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="Name a folder that is new or empty.")
    if (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file():
        return
    # A conversion killed before its first note leaves at most that note's .partial.
    others = sorted(p.name for p in folder.iterdir() if p.name != UNFINISHED + PARTIAL)
    if others:
        raise UsageError(
            f"{folder} is not empty, and no conversion of kt is in it ({', '.join(others[:5])})",
            hint="Name a folder that is new or empty.",
        )


def _write(path: Path, parts: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    path.unlink(missing_ok=True)  # what a killed run left, or a link to something else
    with path.open("xb") as target:
        for part in parts:
            target.write(part)
            digest.update(part)
        target.flush()
        os.fsync(target.fileno())
        # So that reading it back reads the disk.
        os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _disk_errors(
    folder: Path, hint: str = "When that is put right, the same command goes on where it stopped."
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise KtError(
                f"the disk is full: cannot write more to {folder}",
                hint="Free some space; then the same command goes on where it stopped.",
            ) from error
        raise KtError(f"cannot write to {folder}: {error.strerror or error}", hint=hint) from error
