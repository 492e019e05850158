"""How every command reads its arguments: short types in --help, one sentence for a wrong value, all
missing options at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kt.errors import UsageError

# What pydantic calls a value that is no number at all -> what it should have been.
NO_NUMBER = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}

if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object


class _Plain(_Base):
    """Goes before a command class of typer's."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # not "<bool>": a flag takes no value
            elif param.param_type_name == "argument":
                vars(param)["display_type_rich"] = lambda ctx: ""  # not "<str>": its name says it
        return params

    def get_usage(self, ctx: Any) -> str:
        return super().get_usage(ctx).replace("{", "").replace("}", "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as problem:
            if problem.param is None:
                raise
            missing = _missing(self.params, given)
            if problem.param in missing and len(missing) > 1:
                names = ", ".join(param.opts[0] for param in missing)
                command = ctx.command_path
                raise UsageError(
                    f"{command} lacks {names}", hint=f"See {command} --help."
                ) from None
            problem.message = _explained(problem)
            raise


def _missing(params: Sequence[Any], args: Sequence[str]) -> list[Any]:
    """The required options that `args` does not hold."""
    given = {word.partition("=")[0] for word in args}
    return [
        param
        for param in params
        if param.required and param.param_type_name == "option" and not given & set(param.opts)
    ]


def _explained(problem: typer.BadParameter) -> str:
    errors = getattr(problem.__cause__, "errors", None)
    if errors is None:
        return problem.message
    first = errors()[0]
    value = first["input"]
    if first["type"] in NO_NUMBER:
        return f"{value!r} is not {NO_NUMBER[first['type']]}."
    if first["type"] == "value_error":  # a whole sentence that names the value
        return str(first["msg"]).removeprefix("Value error, ").rstrip(".") + "."
    return f"{value!r}: {first['msg'].replace('Input should', 'it should')}."


class Command(_Plain, TyperCommand):
    """A command."""


class Group(_Plain, TyperGroup):
    """A command with commands of its own."""
