"""The interactive conversation: questions, answers and /commands until the user leaves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from kt.chat import terminal
from kt.chat.client import Measures
from kt.chat.interrupts import Interrupts
from kt.chat.session import Session
from kt.errors import KtError, UsageError

# A path such as /etc/hosts is no command.
COMMAND = re.compile(r"/([A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)


class Loop:
    """read: gives the next question, raises EOFError at the end and KeyboardInterrupt at Ctrl-C."""

    def __init__(self, session: Session, console: Console, read: Callable[[], str]) -> None:
        self._session = session
        self._console = console
        self._read = read
        self._over = False
        self._interrupts = Interrupts()

    def run(self) -> None:
        greeting = f"{self._session.model} {self._session.client.where} · /help for commands"
        terminal.show_note(self._console, greeting)
        with self._interrupts.noted():
            while not self._over:
                self._interrupts.forget()
                try:
                    line = self._read().strip()
                except EOFError:
                    return
                except KeyboardInterrupt:
                    terminal.show_note(self._console, "Ctrl-D or /quit leaves")
                    continue
                if line:
                    self._handle(line)

    def _handle(self, line: str) -> None:
        try:
            if match := COMMAND.fullmatch(line):
                self._command(match[1].lower(), unquoted(match[2] or ""))
            else:
                self._answer(line)
        except KtError as error:
            terminal.show_error(self._console, error)

    def _command(self, name: str, argument: str) -> None:
        command = COMMANDS.get(ALIASES.get(name, name))
        if command is None:
            raise UsageError(f"there is no command /{name}", hint="/help lists them")
        command.action(self, argument)

    def _answer(self, question: str) -> None:
        """Ctrl-C ends the answer and keeps what was heard."""
        measures = Measures()
        answer = self._session.ask(question, measures)
        view = terminal.view(self._console)
        stopped = False
        try:
            while True:
                with self._interrupts.felt():
                    text = next(answer, None)
                if text is None:
                    break
                view.add(text)
        except KeyboardInterrupt:
            stopped = True
        finally:
            view.close()
            answer.close()
        if stopped:
            terminal.show_note(self._console, "stopped")
        terminal.show_measures(self._console, measures)

    def _help(self, _: str) -> None:
        lines = [f"/{name:<12} {command.help}" for name, command in COMMANDS.items()]
        keys = "Alt-Enter, or \\ at the end of a line: another line. Ctrl-C: stop the answer."
        terminal.show_note(self._console, "\n".join([*lines, keys]))

    def _system(self, text: str) -> None:
        before, self._session.system = self._session.system, text
        if text:
            terminal.show_note(self._console, f"from now on the system prompt is: {text}")
        elif before:
            terminal.show_note(self._console, f"no system prompt any more; it was: {before}")
        else:
            terminal.show_note(self._console, "there is no system prompt; /system TEXT sets one")

    def _clear(self, _: str) -> None:
        self._session.clear()
        terminal.show_note(self._console, "the conversation starts again")

    def _regenerate(self, _: str) -> None:
        self._answer(self._session.take_back())

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save needs a file name")
        path = Path(name).expanduser()
        self._session.save(path)
        terminal.show_note(self._console, f"saved {path}")

    def _quit(self, _: str) -> None:
        self._over = True


def unquoted(text: str) -> str:
    """`text` without space around it, and without a pair of quotes around that."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text


class Command(NamedTuple):
    action: Callable[[Loop, str], None]
    help: str


COMMANDS = {
    "help": Command(Loop._help, "this list"),
    "system": Command(
        Loop._system, "[TEXT] set the system prompt; without TEXT there is none any more"
    ),
    "clear": Command(Loop._clear, "forget the conversation"),
    "regenerate": Command(Loop._regenerate, "answer the last question again"),
    "save": Command(Loop._save, "FILE write the conversation (Markdown, or JSON for *.json)"),
    "quit": Command(Loop._quit, "leave (also /exit, /bye, Ctrl-D)"),
}
ALIASES = {"exit": "quit", "?": "help", "bye": "quit"}
