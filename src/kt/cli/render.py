"""The one module that prints. Results go to stdout; progress, notes and errors go to stderr.

Nothing here decides anything. On a terminal there are colours and live bars; into a file or a pipe
go plain lines, unwrapped, and a bar becomes a line at its start, its end, and now and then between.
"""

from __future__ import annotations

import io
import json as json_module
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from kt import settings
from kt.units import format_bytes

if TYPE_CHECKING:
    from kt.errors import KtError

Update = Callable[[int, int], None]
"""update(done, total): how far a job is, in bytes or in pieces."""

Justify = Literal["left", "right"]

PLAIN_SECONDS = 30.0
"""Without a terminal, a long job says this often how far it is."""

FOLDING = 2
"""So many last columns of a table may fold."""
FOLDED_WIDTH = 10
"""They are at least so wide then."""

_PIPE_WIDTH = 4096  # wide enough that nothing is wrapped where a program reads


class _Stderr(io.TextIOWrapper):
    """stderr. Where it cannot be written, a full disk say, nobody can be told of it either: kt does
    its work, and ends with its status, as if it could.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.buffer, stream.encoding, "replace", line_buffering=True)
        self._stream = stream  # which would close the buffer if nobody held it

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            discard(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            discard(self)


def discard(stream: TextIO) -> None:
    """What goes to `stream` goes nowhere from now on, also what is still buffered, so that Python's
    own flush at the end is quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def prepare_streams() -> None:
    """Text that the terminal's encoding lacks is shown as "?", a closed stream takes anything, and
    so does a stderr that cannot be written. To be called once, before anything is printed.
    """
    settings.drop_absurd_sizes()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            if name == "stderr":
                sys.stderr = _Stderr(stream)


def stdout() -> Console:
    """The console for results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """The console for progress, notes and errors."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, highlight=False, width=width, soft_wrap=False)


def result(text: str, *, end: str = "\n") -> None:
    """Plain text to stdout, as it is: no markup, no wrapping."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def json(document: Any) -> None:
    """`document` as JSON to stdout, keys in the documented order. Nothing gets lost in an encoding
    that lacks characters."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    result(json_module.dumps(document, indent=2, ensure_ascii=not encoding.startswith("utf")))


def note(text: str) -> None:
    """One line of what is going on, to stderr."""
    stderr().print(escape(text), soft_wrap=True)


def warn(text: str) -> None:
    """A line to stderr about something that works, but not as well as it could."""
    stderr().print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)


def error(problem: KtError) -> None:
    """A failure that kt explains: what and why, then what to do next."""
    console = stderr()
    console.print(f"[bold red]error:[/] {escape(problem.message)}", soft_wrap=True)
    if problem.hint:
        console.print(escape(problem.advice), soft_wrap=True)


def ended(line: str) -> None:
    """The last line of a command that Ctrl-C ended."""
    console = stderr()
    # A terminal has shown ^C at the start of this line.
    console.print(("\n" if console.is_terminal else "") + escape(line), soft_wrap=True)


def unexpected(problem: BaseException, *, debug: bool) -> None:
    """A failure that kt did not foresee: one sentence, and with `debug` the traceback."""
    console = stderr()
    if debug:
        console.print(escape("".join(traceback.format_exception(problem))), soft_wrap=True)
    what = f"{type(problem).__name__}: {problem}".rstrip(": ")
    console.print(
        f"[bold red]error:[/] kt failed in a way it did not expect ({escape(what)}).",
        soft_wrap=True,
    )
    if not debug:
        console.print(
            "KT_DEBUG=1 in the environment shows where; please report it with that.", soft_wrap=True
        )


def table(
    headers: Sequence[tuple[str, Justify]],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    to: Console | None = None,
) -> None:
    """A table without frames; `headers` are (text, justification). Cells are plain text. On a
    narrow terminal the last two columns fold; on one too narrow for that, rows become paragraphs.
    """
    console = to or stdout()
    if title:
        console.print(f"[bold]{escape(title)}[/]")
    if not console.is_terminal:
        with console.capture() as capture:
            console.print(_grid(headers, rows))
        for line in capture.get().splitlines():
            console.print(escape(line.rstrip()), soft_wrap=True)
    elif any(header for header, _ in headers) and _least_width(headers, rows) > console.width:
        _paragraphs(console, [header for header, _ in headers], rows)
    else:
        console.print(_grid(headers, rows))


def _grid(headers: Sequence[tuple[str, Justify]], rows: Sequence[Sequence[str]]) -> Table:
    grid = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(h for h, _ in headers)
    )
    for i, (header, justify) in enumerate(headers):
        fixed = i < len(headers) - FOLDING
        grid.add_column(
            escape(header), justify=justify, header_style="bold", no_wrap=fixed, overflow="fold"
        )
    for row in rows:
        grid.add_row(*map(escape, row))
    return grid


def _least_width(headers: Sequence[tuple[str, Justify]], rows: Sequence[Sequence[str]]) -> int:
    """Columns of the screen below which a cell would be cut or folded to shreds."""
    width = 0
    for i, (header, _) in enumerate(headers):
        widest = max(cell_len(text) for text in (header, *(row[i] for row in rows)))
        width += 2 + (min(widest, FOLDED_WIDTH) if i >= len(headers) - FOLDING else widest)
    return width - 2


def _paragraphs(console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Each row as a heading and, below it, what the other columns say."""
    for first, *rest in rows:
        console.print(f"[bold]{escape(first)}[/]")
        cells = [f"{name} {cell}" for name, cell in zip(headers[1:], rest, strict=True)]
        console.print(Padding(escape(", ".join(cells)), (0, 0, 0, 4)))


def facts(title: str, rows: Sequence[tuple[str, str, str]], *, to: Console | None = None) -> None:
    """Rows of (name, value, reason) under a title."""
    table((("", "left"), ("", "left"), ("", "left")), rows, title=title, to=to)


def log_to_stderr() -> None:
    """Log lines of kt from "info" on, of its libraries from "warning" on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("kt").setLevel(logging.INFO)


@contextmanager
def progress(label: str, *, unit: Literal["bytes", "pieces"] = "bytes") -> Iterator[Update]:
    """Shows a job's size, rate and time left while the body calls update(done, total)."""
    if stderr().is_terminal:
        with _live_bar(label, unit) as update:
            yield update
    else:
        with _plain_lines(label, unit) as update:
            yield update


@contextmanager
def _live_bar(label: str, unit: str) -> Iterator[Update]:
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[state]}"),
    )
    with bars.Progress(*columns, console=stderr(), transient=False) as live:
        task = live.add_task(escape(label), total=None, state="")  # nothing is known yet
        start = time.monotonic()

        def update(done: int, total: int) -> None:
            state = _state(done, total, time.monotonic() - start, unit)
            live.update(task, completed=done, total=total, state=state)

        yield update


@contextmanager
def _plain_lines(label: str, unit: str) -> Iterator[Update]:
    start = last = time.monotonic()
    first: int | None = None
    known_total = 0

    def update(done: int, total: int) -> None:
        nonlocal last, first, known_total
        now = time.monotonic()
        if total != known_total:
            note(f"{label}: {_amount(total, unit)}")
            first, known_total = done, total
        elif now - last >= PLAIN_SECONDS and first is not None and done > first:
            rate = (done - first) / (now - start)
            left = timedelta(seconds=round((total - done) / rate))
            note(f"{label}: {_amount(done, unit)}, {_amount(rate, unit)}/s, {left} left")
            last = now

    yield update
    if known_total:
        note(f"{label}: done in {time.monotonic() - start:.1f} s")


def _state(done: int, total: int, seconds: float, unit: str) -> str:
    """How far a job is, for the end of a bar; nothing that is not known yet."""
    parts = [f"{_amount(done, unit)} of {_amount(total, unit)}"]
    if done and seconds >= 1:
        parts.append(f"{_amount(done / seconds, unit)}/s")
        if done < total:
            parts.append(f"{timedelta(seconds=round((total - done) * seconds / done))} left")
    return ", ".join(parts)


def _amount(count: float, unit: str) -> str:
    return format_bytes(count) if unit == "bytes" else f"{count:.0f}"
