"""The `kt` command: finds the subcommand, runs it, and turns failures into one message and an exit
status."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from kt import __version__, settings
from kt.cli import interrupt, render
from kt.cli.command import Command as PlainCommand
from kt.cli.command import Group
from kt.errors import EXIT_INTERRUPTED, KtError, UsageError

EXIT_UNEXPECTED = 70  # sysexits.h: EX_SOFTWARE
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_HINT = "Free some space, or write somewhere else."


class Row(NamedTuple):
    """Where a subcommand lives: `attribute` of `module` is a function or a Typer app."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "doctor": Row("kt.cli.doctor", "doctor", "Survey this machine: what kt will use, and why."),
    "models": Row("kt.cli.models", "models", "List the models known by name."),
    "run": Row("kt.cli.run", "run", "Load a model and serve it on this machine."),
    "chat": Row(
        "kt.cli.chat", "chat", "Talk to a running model, or to one that is on this machine."
    ),
    "convert": Row(
        "kt.cli.convert", "convert", "Convert a model into files that load at once anywhere."
    ),
    "bench": Row(
        "kt.cli.bench", "bench", "Measure a model, or one layer, against the machine's limits."
    ),
}


# What other tools of this kind are told -> what kt has for it.
ELSEWHERE = {
    "run -m": "kt run MODEL: the model is an argument",
    "run -hf": "kt run owner/name:QUANTISATION: the model is an argument",
    "run --model": "kt run MODEL: the model is an argument",
    "chat -m": "kt chat --model NAME",
    "list": "kt models lists the models known by name",
    "ls": "kt models lists the models known by name",
    "pull": "kt run MODEL downloads what is missing; with --dry-run it says how much that is",
    "show": "kt run MODEL --dry-run shows the plan for a model",
    "serve": "kt run MODEL serves it",
    "server": "kt run MODEL serves it",
    "ps": "kt chat finds the servers that run here by itself",
    "stop": "Ctrl-C ends kt run",
    "rm": "downloads lie in the hub's own cache: `hf cache rm model/OWNER/NAME` deletes one",
    "help": "kt --help lists the commands",
    "version": "kt --version",
    "quantize": "kt convert MODEL DEST --format int4",
}


class LazyGroup(Group):
    """Knows its commands by name and one line of help; imports only the one that runs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins, enough for the list in --help and for the suggestion after a typo.
        self.commands = {name: PlainCommand(name, help=row.help) for name, row in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        for words in (args[0], " ".join(args[:2])):
            if words in ELSEWHERE:
                raise UsageError(f"there is no `kt {words}`", hint=ELSEWHERE[words])
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Imports the command `name` (a key of COMMANDS) and builds it."""
    row = COMMANDS[name]
    found = getattr(importlib.import_module(row.module), row.attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name, cls=PlainCommand, help=found.__doc__ or row.help)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    name="kt",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Runs large Mixture-of-Experts language models on the machine you have.",
    epilog="Environment: KT_VARIANT, KT_THREADS, KT_HOME, KT_DEBUG, HF_TOKEN, HF_HUB_OFFLINE.",
)


def _version(wanted: bool) -> None:
    if wanted:
        render.result(f"kt {__version__}")
        raise typer.Exit


@app.callback()
def _kt(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Runs kt as a process of its own and returns the exit status."""
    render.prepare_streams()
    return run(argv)


def run(argv: Sequence[str] | None = None) -> int:
    """Runs `argv` (default: the process arguments) and returns the exit status. Never shows a
    traceback unless KT_DEBUG asks for it.
    """
    try:
        app(args=None if argv is None else list(argv), prog_name="kt")
    except SystemExit as stop:  # typer's own way out: --help, usage errors, typer.Exit
        if stop.code == EXIT_INTERRUPTED:
            return _interrupted(stop)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KtError as problem:
        render.error(problem)
        return problem.exit_code
    except KeyboardInterrupt as stop:
        return _interrupted(stop)
    except BrokenPipeError:  # the reader went away (`kt models | head`)
        render.discard(sys.stdout)
        return 1
    except Exception as problem:
        if interrupt.of(problem):
            return _interrupted(problem)
        if isinstance(problem, OSError) and problem.errno in DISK_FULL:
            render.discard(sys.stdout)
            render.error(KtError(f"cannot write: {_reason(problem)}", hint=FULL_HINT))
            return KtError.exit_code
        render.unexpected(problem, debug=_debug())
        return EXIT_UNEXPECTED
    return 0


def _reason(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}"


def _interrupted(problem: BaseException) -> int:
    what = str(interrupt.of(problem) or "")
    render.ended(f"interrupted; {what}" if what else "interrupted")
    return EXIT_INTERRUPTED


def _debug() -> bool:
    try:
        return settings.load().debug
    except KtError:
        return False
