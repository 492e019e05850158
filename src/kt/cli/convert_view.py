"""How `kt convert` shows sizes and errors."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kt.cli import render
from kt.units import format_bytes

if TYPE_CHECKING:
    from kt.convert.convert import Conversion

_LAYERS: list[tuple[str, render.Justify]] = [
    ("FILE", "left"),
    ("SIZE", "right"),
    ("ERROR", "right"),
    ("FORMATS", "left"),
]
_WORST: list[tuple[str, render.Justify]] = [
    ("ERROR", "right"),
    ("FORMAT", "left"),
    ("TENSOR", "left"),
]


def show_sizes(conversion: Conversion, *, as_json: bool) -> None:
    """What a dry run is for."""
    formats = conversion.bytes_by_format
    if as_json:
        render.json(
            {
                "format": conversion.target,
                "group": conversion.group,
                "experts_only": conversion.experts_only,
                "source_bytes": conversion.checkpoint.tensor_bytes,
                "bytes": conversion.nbytes,
                "bytes_by_format": formats,
                "files": {file.name: file.nbytes for file in conversion.files},
            }
        )
        return
    rows = [(name, format_bytes(count)) for name, count in formats.items()]
    rows.append(("in all", f"{format_bytes(conversion.nbytes)} in {len(conversion.files)} files"))
    rows.append(("the source", format_bytes(conversion.checkpoint.tensor_bytes)))
    render.table((("", "left"), ("", "left")), rows, title=f"Weights as {conversion.target}")
    if conversion.target.startswith("int4"):
        render.note("Embeddings and output head get 8 bits, routers stay float32.")


def show_report(manifest: dict[str, Any], folder: Path, *, already: bool, as_json: bool) -> None:
    """The relative error by file, and the worst tensors. already: nothing was to be done."""
    from kt.convert import report

    layers, worst = report.layers(manifest), report.worst(manifest)
    total = sum(row["bytes"] for row in layers)
    if as_json:
        keys = ("format", "group", "experts_only", "calibration", "kt_version", "source")
        facts = {key: manifest[key] for key in keys}
        state = {"already_converted": already, "bytes": total}
        render.json({**facts, **state, "layers": layers, "worst": worst})
        return
    there = shlex.quote(str(folder))
    if already:
        render.note(
            f"Already converted, nothing to do: {format_bytes(total)} in {folder}. That goes by "
            f"the files' sizes; kt convert --verify {there} reads every byte."
        )
        return
    rows = [
        (
            row["file"].removesuffix(".safetensors"),
            format_bytes(row["bytes"]),
            _error(row["relative_error"]),
            ", ".join(row["formats"]),
        )
        for row in layers
    ]
    render.table(_LAYERS, rows, title="Relative error by file")
    if worst:
        cells = [(_error(row["relative_error"]), row["format"], row["tensor"]) for row in worst]
        render.table(_WORST, cells, title="\nWorst tensors")
    render.note(f"\n{format_bytes(total)} in {folder}. Try it: kt run {there}")


def show_verified(manifest: dict[str, Any], folder: Path, *, as_json: bool) -> None:
    """What --verify found, when nothing was wrong."""
    files = manifest["files"]
    total = sum(row["bytes"] for row in files.values())
    if as_json:
        render.json({"ok": True, "files": len(files), "bytes": total})
    else:
        render.result(f"{len(files)} files, {format_bytes(total)}: every byte is as kt wrote it")


def _error(value: float) -> str:
    return f"{100 * value:.2f} %" if value else "exact"
