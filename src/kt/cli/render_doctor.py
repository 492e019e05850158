"""How `kt doctor` looks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.markup import escape
from rich.table import Table

from kt.cli import render
from kt.cli.verdicts import Line

STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def doctor(lines: Sequence[Line]) -> None:
    """Prints the lines by section, advice below what it is about, and a count at the end."""
    console = render.stdout()
    width = max(len(line.name) for line in lines)
    with console.capture() as capture:
        for section, group in groupby(lines, key=lambda line: line.section):
            console.print(f"[bold]{escape(section)}[/]")
            console.print(_grid(list(group), width))
        console.print(_summary(lines))
    for line in capture.get().splitlines():  # a grid pads its last column
        render.result(line.rstrip())


def _grid(lines: Sequence[Line], width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=6, justify="right")
    grid.add_column(width=width)
    grid.add_column(overflow="fold")
    for line in lines:
        style = STYLES[line.verdict]
        grid.add_row(f"[{style}]{line.verdict}[/]", escape(line.name), escape(line.value))
        if line.advice:
            grid.add_row("", "", f"[{style}]->[/] {escape(line.advice)}")
    return grid


def _summary(lines: Sequence[Line]) -> str:
    counts = {verdict: sum(line.verdict == verdict for line in lines) for verdict in STYLES}
    if counts["ok"] == len(lines):
        return "[green]All is well.[/]"
    parts = []
    if counts["bad"]:
        parts.append(f"{counts['bad']} bad")
    if counts["warn"]:
        parts.append(f"{counts['warn']} warning{'s' if counts['warn'] > 1 else ''}")
    return f"[yellow]{', '.join(parts)}.[/]"
