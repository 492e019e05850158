"""`kt chat`: talk to a running model, once or at length."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt import settings, words
from kt.cli import interrupt, render
from kt.errors import KtError, ModelError, UsageError

# For a model whose own files do not say.
TEMPERATURE = 0.7
MAX_TOKENS = 2048

if TYPE_CHECKING:
    from pathlib import Path

    from kt.catalog import Entry
    from kt.chat.client import Answers
    from kt.chat.session import Session


def chat(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="One question; without it a conversation starts."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server; default: the one running here.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="An alias, path or repository; default: the first one served. One that no server "
            "here serves, such as tiny, is loaded for this chat if its files are here.",
        ),
    ] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="A system prompt.")] = "",
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=2,
            metavar="T",
            help="0: the best token always. Default: the model's, or 0.7.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 24, metavar="N", help="The longest answer, in tokens. Default: 2048."
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The server's key, if it has one.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; docs/chat.md names its fields.")
    ] = False,
) -> None:
    """Talk to a running model, or to one that is on this machine.

    The question is the argument, or what is piped in (cat file | kt chat "summarise"), or both.
    """
    from kt.chat.session import Session

    home = settings.load().home
    if model is None and prompt:
        _check_no_model(prompt)
    question = _question(" ".join(prompt) if prompt else None)
    system = words.typed(system)
    if as_json and question is None:
        raise UsageError("--json needs a question", hint='kt chat --json "one question"')
    client = _answers(url, model, home, api_key)
    try:
        options: dict[str, Any] = {"max_tokens": max_tokens or MAX_TOKENS}
        name = model if model and url else client.model()
        if temperature is None and not client.names_temperature():
            temperature = TEMPERATURE
        if temperature is not None:
            options["temperature"] = temperature
        session = Session(client, name, system, options)
        if question is None:
            _converse(session)
        else:
            with interrupt.means("the answer is not whole"):
                _answer(session, question, as_json)
    finally:
        client.close()


def _answers(url: str | None, model: str | None, home: Path, api_key: str | None) -> Answers:
    from kt.chat.client import Client, find_url

    if url is None and model is not None:
        return _named(model, home, api_key)
    return Client(find_url(url, home, render.note), api_key)


def _named(model: str, home: Path, api_key: str | None) -> Answers:
    """The newest server of this model, else the model itself if its files are here. Raises
    KtError."""
    from kt import catalog
    from kt.chat.client import START_HINT, Client, NoServer
    from kt.cli import runnable
    from kt.server import state

    servers = state.living(home)
    try:
        entry = catalog.resolve(model)
        names = _names(entry, model)
    except (UsageError, ModelError) as error:
        entry, names, unknown = None, [model], error
    for name in names:
        for server in servers:
            if server.serves(name):
                return Client(server.url, api_key)
    try:
        if entry is None:
            raise unknown
        if api_key is not None:
            raise NoServer(f"no kt server here serves {entry.name}", hint=START_HINT)
        runnable.check(entry)
        return _loaded(entry.name, runnable.files(entry), entry.packaged)
    except KtError as error:
        if servers:
            served = ", ".join(dict.fromkeys(server.model for server in servers))
            error.hint = (
                f"Served here: {served}; without --model the newest is asked. {error.advice}"
            )
        raise


def _names(entry: Entry, model: str) -> list[str]:
    """What the server of `entry` is called, the surest first. A relative path says nothing: it may
    have been typed in another folder.
    """
    if entry.path is None:
        return [entry.name, model]
    return [str(entry.path.resolve()), *([] if os.sep in model else [model])]


def _loaded(name: str, path: Path, packaged: bool) -> Answers:
    """The model in this process. What is a part of kt is loaded before it could be announced."""
    from kt.chat.local import Local

    variant = settings.load().variant
    if packaged:
        return Local.start(name, path, variant=variant)
    with render.progress(f"Loading {name}") as update:
        return Local.start(name, path, variant=variant, progress=update)


def _check_no_model(typed: list[str]) -> None:
    """Raises UsageError for `kt chat MODEL QUESTION`, as other tools have it."""
    from kt import catalog

    name, *question = typed
    if name in catalog.aliases():
        raise UsageError(
            f"{name} is a model, and kt chat takes it as --model",
            hint=shlex.join(["kt", "chat", "--model", name, *filter(None, [" ".join(question)])]),
        )


def _question(prompt: str | None) -> str | None:
    """The argument, what is piped in, or both; None if the user should be asked."""
    given = None if prompt is None else words.typed(prompt)
    if given is not None and not given.strip():
        given = ""
    if sys.stdin is None or sys.stdin.isatty():
        if given == "":
            raise _no_question()
        return given
    piped = words.piped(sys.stdin.buffer.read()).strip()
    question = "\n\n".join(part for part in (given, piped) if part)
    if not question:
        raise _no_question()
    return question


def _no_question() -> UsageError:
    return UsageError("there is no question", hint='kt chat "one question"')


def _converse(session: Session) -> None:
    from kt.chat.loop import COMMANDS, Loop
    from kt.chat.prompt import line_reader

    read = line_reader(settings.load().home, [f"/{name}" for name in COMMANDS])
    Loop(session, render.stdout(), read).run()


def _answer(session: Session, question: str, as_json: bool) -> None:
    from kt.chat import terminal
    from kt.chat.client import Measures, Thought

    measures = Measures()
    pieces = session.ask(question, measures)
    if as_json:
        answer = "".join(piece for piece in pieces if not isinstance(piece, Thought))
        render.json(
            {
                "model": session.model,
                "answer": answer,
                "finish_reason": measures.finish_reason,
                "prompt_tokens": measures.prompt_tokens,
                "completion_tokens": measures.tokens,
                "first_token_seconds": measures.first,
                "tokens_per_second": measures.rate,
            }
        )
        return
    console = render.stdout()
    view = terminal.view(console)
    try:
        for text in pieces:
            view.add(text)
    finally:
        view.close()
    if console.is_terminal:
        terminal.show_measures(console, measures)
