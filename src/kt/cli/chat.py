"""`kt chat`: talk to a running model, once or at length."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt import settings, words
from kt.cli import interrupt, render
from kt.errors import UsageError

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
        str | None,
        typer.Argument(metavar="QUESTION", help="One question; without it a conversation starts."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server; default: the one running here.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model's name; default: the first one served. One that no server here serves, "
            "such as tiny, is loaded for this chat if its files are here.",
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
        typer.Option(min=1, metavar="N", help="The longest answer, in tokens. Default: 2048."),
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
    question = _question(prompt)
    system = words.typed(system)
    if as_json and question is None:
        raise UsageError("--json needs a question", hint='kt chat --json "one question"')
    client = _answers(url, model, home, api_key)
    try:
        options: dict[str, Any] = {"max_tokens": max_tokens or MAX_TOKENS}
        name = model or client.model()
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
    """A server, or the model itself where no server has it and its files are here."""
    from kt.chat.client import Client, find_url, serving

    if url is None and api_key is None and model is not None and serving(home, model) is None:
        from kt.chat import local

        entry = local.find(model)
        if entry is not None and serving(home, entry.name) is None:
            return _loaded(entry)
    return Client(find_url(url, home, render.note, model), api_key)


def _loaded(entry: Entry) -> Answers:
    """The model in this process. What is a part of kt is loaded before it could be announced."""
    from kt.chat.local import Local

    assert entry.path is not None
    variant = settings.load().variant
    if entry.packaged:
        return Local.start(entry.name, entry.path, variant=variant)
    with render.progress(f"Loading {entry.name}") as update:
        return Local.start(entry.name, entry.path, variant=variant, progress=update)


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
