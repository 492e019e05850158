"""The line editor: history in a file, several lines with Alt-Enter or a backslash at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

HISTORY_NAME = "chat_history"
PROMPT = "> "
CONTINUATION = ". "


def line_reader(home: Path, commands: list[str]) -> Callable[[], str]:
    """A function that reads one question. It raises EOFError at Ctrl-D and KeyboardInterrupt at
    Ctrl-C.
    """
    completer = WordCompleter(commands, sentence=True)
    session: PromptSession[str] = PromptSession(
        history=_history(home),
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation=CONTINUATION,
        completer=completer,
        complete_while_typing=False,
    )
    return lambda: session.prompt(PROMPT)


def _history(home: Path) -> History:
    """What was typed before, in a file that only its owner can read; in memory if it cannot be
    written.
    """
    path = home / HISTORY_NAME
    try:
        home.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
