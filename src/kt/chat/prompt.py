"""The line editor: history in a file, several lines with Alt-Enter or a backslash at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from kt import words

HISTORY_NAME = "chat_history"
PROMPT = "> "
CONTINUATION = ". "
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    return lambda: _question(session)


def _question(session: PromptSession[str]) -> str:
    """One question. Ctrl-C after Enter is for the answer: it is sent again as a signal. So are
    signals that end kt, once the terminal is as it was: raised in the middle of the toolkit's
    drawing they would leave it in raw mode."""
    arrived: list[int] = []

    def note(number: int, frame: object) -> None:
        arrived.append(number)
        loop = session.app.loop
        if loop is not None and session.app.is_running:
            loop.call_soon_threadsafe(_give_up, session)

    # The toolkit's own handler would swallow a signal that comes after Enter.
    handled = [n for n in _SIGNALS if callable(signal.getsignal(n))]
    before = {number: signal.signal(number, note) for number in handled}
    try:
        text = session.prompt(PROMPT, handle_sigint=False)
        if _pressed_ahead(session):
            arrived.append(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in arrived:
            if late != signal.SIGINT:
                signal.raise_signal(late)
    if arrived:
        signal.raise_signal(signal.SIGINT)
    return words.typed(text)


def _give_up(session: PromptSession[str]) -> None:
    """A signal from outside: while the prompt waits, Ctrl-C is a key and no signal."""
    if session.app.is_running and not session.app.is_done:
        session.app.exit(exception=KeyboardInterrupt)


def _pressed_ahead(session: PromptSession[str]) -> bool:
    """Whether Ctrl-C is among the keys that were pressed after Enter, before the terminal made
    signals of it again; the others stay for the next question."""
    with session.input.raw_mode():
        keys = get_typeahead(session.input) + session.input.read_keys()
    stop = next((i for i, press in enumerate(keys) if press.key == Keys.ControlC), None)
    store_typeahead(session.input, keys if stop is None else keys[stop + 1 :])
    return stop is not None


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

    @bindings.add("c-c")
    def stop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()  # as a shell does: away with this line
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
