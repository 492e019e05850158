"""How a conversation looks: Markdown that grows on a terminal, plain text anywhere else."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.markup import escape
from rich.text import Text
from rich.theme import Theme

from kt.chat.client import Thought

if TYPE_CHECKING:
    from kt.chat.client import Measures
    from kt.errors import KtError

REFRESH_SECONDS = 0.1
THOUGHT_CHARACTERS = 200
CODE_THEME = "ansi_light"
"""Of the terminal's own colours those that can be read on a dark ground as well."""
CODE_STYLES = Theme({"markdown.code": "bold cyan", "markdown.code_block": "cyan"})
"""On the terminal's ground, where rich's own styles make it black."""
FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


class View(Protocol):
    """Shows one answer while it comes."""

    def add(self, text: str) -> None: ...
    def close(self) -> None: ...


def view(console: Console) -> View:
    return MarkdownView(console) if console.is_terminal else PlainView(console)


class PlainView:
    """The answer as it is, for files and pipes; ends with one newline."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._last = "\n"

    def add(self, text: str) -> None:
        if isinstance(text, Thought):
            return
        self._file.write(text)
        self._file.flush()
        self._last = text[-1:] or self._last

    def close(self) -> None:
        if self._last != "\n":
            self._file.write("\n")
        self._file.flush()


class MarkdownView:
    """Finished blocks are printed for good and only the last one is drawn again, so that a long
    answer neither costs more and more to draw nor outgrows the screen. The end of a thought is
    shown until the answer begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._console.push_theme(CODE_STYLES)
        self._open = ""  # text of the block that still grows
        self._thought = ""
        self._drawn = 0.0
        self._live = Live("", console=console, auto_refresh=False, redirect_stderr=False)
        self._live.start()

    def add(self, text: str) -> None:
        if isinstance(text, Thought):
            self._think(text)
            return
        self._open += text
        done, self._open = split_blocks(self._open)
        if done:
            self._live.update("")
            self._console.print(_markdown(done), "")
        now = time.monotonic()
        if done or now - self._drawn >= REFRESH_SECONDS:
            self._live.update(_markdown(self._open), refresh=True)
            self._drawn = now

    def _think(self, text: str) -> None:
        self._thought = (self._thought + text)[-THOUGHT_CHARACTERS:]
        now = time.monotonic()
        if now - self._drawn >= REFRESH_SECONDS:
            self._live.update(Text(self._thought, style="dim"), refresh=True)
            self._drawn = now

    def close(self) -> None:
        self._live.update(_markdown(self._open), refresh=True)
        self._live.stop()
        self._console.pop_theme()


def _markdown(text: str) -> Markdown:
    return Markdown(text, code_theme=CODE_THEME)


def split_blocks(text: str) -> tuple[str, str]:
    """(finished blocks, the rest): cut at the last empty line that is not inside a code fence."""
    end = len(text)
    while (cut := text.rfind("\n\n", 0, end)) > 0:
        if len(FENCE.findall(text[:cut])) % 2 == 0:
            return text[:cut], text[cut:].lstrip("\n")
        end = cut
    return "", text


def show_measures(console: Console, measures: Measures) -> None:
    """One dim line: tokens, tokens per second, time to the first token."""
    parts = [f"{measures.tokens} tokens"]
    if measures.rate is not None:
        parts.append(f"{measures.rate:.1f} tokens/s")
    if measures.first is not None:
        parts.append(f"first after {measures.first:.2f} s")
    if measures.finish_reason == "length":
        parts.append("cut at the token limit")
    console.print(f"[dim]{' · '.join(parts)}[/]\n")


def show_note(console: Console, text: str) -> None:
    console.print(f"[dim]{escape(text)}[/]", highlight=False)


def show_error(console: Console, error: KtError) -> None:
    console.print(f"[red]{escape(error.message)}[/]", highlight=False)
    if error.hint:
        show_note(console, error.advice)
