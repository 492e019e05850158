"""/proc and /sys below a root, so that a captured machine can be replayed."""

from __future__ import annotations

import re
from pathlib import Path


def parse_ids(text: str) -> tuple[int, ...]:
    """Ids from the kernel's list format, sorted: "0-2,8" -> (0, 1, 2, 8). Raises ValueError."""
    ids: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            ids.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(ids))


def format_ids(ids: tuple[int, ...]) -> str:
    """The kernel's list format: (0, 1, 2, 8) -> "0-2,8"."""
    ranges: list[list[int]] = []
    for i in sorted(ids):
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _ids(text: str | None) -> tuple[int, ...] | None:
    try:
        return parse_ids(text or "") or None
    except ValueError:
        return None


class Tree:
    """Reads files below `root`. What is missing or unreadable is absent, never an error: the
    kernel leaves files out freely, and so do containers. `live` is true for the running machine."""

    def __init__(self, root: Path) -> None:
        self._root = str(root).rstrip("/")
        self.live = root.resolve() == Path("/")

    def path(self, path: str) -> Path:
        """Where the machine's `path` ("/proc/...") is."""
        return Path(self._root + path)

    def text(self, path: str) -> str | None:
        """The file's text without the blanks around it, or None."""
        try:
            with open(self._root + path, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The file's whole number, or None."""
        text = self.text(path)
        return int(text) if text and re.fullmatch(r"-?\d+", text) else None

    def ids(self, path: str) -> tuple[int, ...] | None:
        """The ids in the file (list format), or None where there are none."""
        return _ids(self.text(path))

    def ids_in(self, path: str, key: str) -> tuple[int, ...] | None:
        """The ids on the line `key` of the file, or None where there are none."""
        return _ids(self.table(path).get(key))

    def table(self, path: str) -> dict[str, str]:
        """Lines of "key: value", "key value" or "key = value"; of a key that comes again, the
        first."""
        table: dict[str, str] = {}
        for line in (self.text(path) or "").splitlines():
            parts = re.split(r"\s*[:=]\s*|\s+", line.strip(), maxsplit=1)
            if len(parts) == 2:
                table.setdefault(parts[0], parts[1])
        return table

    def numbered(self, folder: str, prefix: str) -> tuple[int, ...]:
        """The n of every entry `prefix`n in `folder`, sorted: node0, node4 -> (0, 4)."""
        try:
            names = [entry.name for entry in self.path(folder).iterdir()]
        except OSError:
            return ()
        matches = (re.fullmatch(rf"{prefix}(\d+)", name) for name in names)
        return tuple(sorted(int(match[1]) for match in matches if match))
