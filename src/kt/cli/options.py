"""Options that several commands have: written once, so that they read and work the same."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt import settings
from kt.errors import UsageError

if TYPE_CHECKING:
    from kt.kernels.variants import Variant
    from kt.machine.facts import Machine
    from kt.units import Choice

MODEL_HELP = "Alias, path, or owner/name[:QUANTISATION] on the hub."

MOST_STREAMS = 256
"""Requests that a server computes at once."""

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]


class KvCache(str, Enum):
    """The values of --kv-format: those of kt.placement.budget.KV_FORMATS."""

    BF16 = "bf16"
    INT8 = "int8"


KvFormatName = Annotated[
    KvCache | None,
    typer.Option("--kv-format", help="What keys and values are stored in. Default: bf16."),
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="Worker threads. Default: see kt doctor.")
]
VariantName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Kernel variant, to go below what the CPU can do."),
]


def dry_run(shows: str) -> Any:
    """--dry-run, which shows `shows` and does nothing else."""
    return typer.Option("--dry-run", help=f"Show {shows}.")


def as_json(page: str) -> Any:
    """--json, whose fields docs/`page`.md names."""
    return typer.Option("--json", help=f"Print one JSON object; docs/{page}.md names its fields.")


def chosen_variant(machine: Machine, asked: str | None) -> Choice[Variant]:
    """The kernel variant that --variant or else KT_VARIANT asks for. Raises KtError."""
    from kt.kernels.variants import select

    source = "--variant" if asked else "KT_VARIANT"
    return select(machine.cpu, asked or settings.load().variant, source=source)


def numbers(name: str, text: str) -> tuple[int, ...]:
    """The value of --name: numbers with commas between them, each once. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    bad = next((part for part in parts if not part.isdecimal() or int(part) < 1), None)
    if bad is not None:
        raise UsageError(
            f"--{name} {text}: {bad or 'an empty entry'} is not a positive whole number",
            hint=f"Numbers with commas between them: --{name} 1,8,128",
        )
    return tuple(dict.fromkeys(int(part) for part in parts))
