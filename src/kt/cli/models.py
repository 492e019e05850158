"""`kt models`: the models known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt import catalog
from kt.cli import render, runnable
from kt.units import format_bytes

if TYPE_CHECKING:
    from kt.catalog import Entry


def models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; docs/models.md names the fields.")
    ] = False,
) -> None:
    """List the models known by name: size, licence, and whether they run and fit here."""
    from kt.download import is_cached
    from kt.machine.survey import survey

    usable = survey(gpus=False).memory.usable
    rows = [
        _row(alias, entry, usable, not entry.packaged and is_cached(entry))
        for alias, entry in catalog.aliases().items()
    ]
    if as_json:
        render.json({"memory_usable_bytes": usable, "models": rows})
        return
    headers: list[tuple[str, render.Justify]] = [
        ("ALIAS", "left"),
        ("PARAMS", "right"),
        ("ACTIVE", "right"),
        ("GB", "right"),
        ("FORMAT", "left"),
        ("LICENCE", "left"),
        ("HERE", "left"),
    ]
    render.table(headers, [_cells(row) for row in rows])
    render.note(
        f'\n{format_bytes(usable)} of memory may be used here; "not yet": this version of kt does '
        f"not run them. A path or any hub repository of a "
        f"runnable family works too: kt run owner/name, kt run owner/name:Q4_K_M."
    )


def _row(alias: str, entry: Entry, usable: int, downloaded: bool) -> dict[str, Any]:
    """One alias as --json shows it."""
    why = runnable.why_not(entry)
    needed = entry.size_bytes or entry.experts_bytes or 0
    return {
        "alias": alias,
        "repo": entry.repo,
        "packaged": entry.packaged,
        "family": entry.family,
        "format": entry.format,
        "licence": entry.licence,
        "gated": entry.gated,
        "params_total_billions": entry.params_total,
        "params_active_billions": entry.params_active,
        "size_bytes": entry.size_bytes,
        "experts_bytes": entry.experts_bytes,
        "runnable": not why,
        "not_runnable_because": why or None,
        "fits": needed <= usable,
        "downloaded": downloaded,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    size = _gigabytes(row["size_bytes"]) or _gigabytes(row["experts_bytes"]) + "+"
    here = ["fits" if row["fits"] else "too large"]
    if not row["runnable"]:
        here = ["not yet"]
    if row["gated"]:
        here.append("gated")
    if row["packaged"]:
        here.append("part of kt")
    if row["downloaded"]:
        here.append("downloaded")
    return [
        row["alias"],
        _billions(row["params_total_billions"]),
        _billions(row["params_active_billions"]),
        size,
        row["format"],
        row["licence"],
        ", ".join(here),
    ]


def _billions(count: float | None) -> str:
    if count is None:
        return ""
    return f"{count * 1000:.0f}M" if count < 1 else f"{count:.1f}B"


def _gigabytes(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.1f}" if count >= 5e7 else f"{count / 1e9:.3f}"
