"""How far a conversion is from its source, by layer and for the worst tensors; its checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kt.convert.destination import hash_file
from kt.errors import ModelError
from kt.weights.packed_folder import MANIFEST, checksum, read_manifest

WORST: Final = 10


def layers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """For each file: name, bytes, formats, relative error of all its matrices together."""
    rows = []
    for name, record in manifest["files"].items():
        matrices = record["matrices"].values()
        norm = sum(row["norm"] ** 2 for row in matrices)
        error = sum((row["relative_error"] * row["norm"]) ** 2 for row in matrices)
        rows.append(
            {
                "file": name,
                "bytes": record["bytes"],
                "formats": sorted({row["format"] for row in matrices}),
                "relative_error": float(f"{(error / norm) ** 0.5:.4g}") if norm else 0.0,
            }
        )
    return rows


def worst(manifest: dict[str, Any], count: int = WORST) -> list[dict[str, Any]]:
    """The matrices with the largest relative error; of experts, the worst of each part."""
    rows = []
    for record in manifest["files"].values():
        for name, row in record["matrices"].items():
            label = f"{name}[{row['worst']}]" if "worst" in row else name
            error = row.get("worst_relative_error", row["relative_error"])
            rows.append({"tensor": label, "format": row["format"], "relative_error": error})
    rows.sort(key=lambda row: (-row["relative_error"], row["tensor"]))
    return [row for row in rows[:count] if row["relative_error"]]


def verify(folder: Path, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Reads every weight file of a finished conversion; returns the manifest. progress in bytes.

    Raises one ModelError that names every file that is missing or has other bytes, the manifest
    among them.
    """
    manifest = read_manifest(folder)
    if manifest.get("checksum") != checksum(manifest):
        raise ModelError(
            f"{folder} is damaged: {MANIFEST} says something else than kt wrote",
            hint="Convert the model again, into another folder.",
        )
    files: dict[str, Any] = manifest["files"]
    faults, done = [], 0
    total = sum(record["bytes"] for record in files.values())
    for name, record in files.items():
        fault = _fault(folder / Path(name).name, record)
        faults += [f"{name} {fault}"] if fault else []
        done += record["bytes"]
        if progress:
            progress(done, total)
    if faults:
        raise ModelError(
            f"{folder} is damaged:\n  " + "\n  ".join(faults),
            hint="Delete the named files; then the same `kt convert` command makes them again.",
        )
    return manifest


def _fault(path: Path, record: dict[str, Any]) -> str:
    """What is wrong with a file of a conversion, "" for nothing."""
    try:
        if not path.is_file():
            return "is missing"
        if path.stat().st_size != record["bytes"]:
            return f"has {path.stat().st_size} bytes, not {record['bytes']}"
        return "" if hash_file(path) == record["sha256"] else "has other bytes than kt wrote"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
