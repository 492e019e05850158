"""Ctrl-C: what it means for what it has stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def means(what: str) -> Iterator[None]:
    """An interrupt of the body carries `what` to the line that ends the command. What an inner body
    said stays.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or (what,))) from None


def of(problem: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that `problem` is or came of: typer makes an exit status of it, and modules
    written in C may turn one of their import into another error.
    """
    while problem is not None and not isinstance(problem, KeyboardInterrupt):
        problem = problem.__cause__ or problem.__context__
    return problem
