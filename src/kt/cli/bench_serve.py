"""`kt bench serve`: a server, as its clients see it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from kt import settings
from kt.cli import bench_view, interrupt, options, render, runnable
from kt.errors import UsageError

if TYPE_CHECKING:
    from kt.bench.serving import Report


NO_RESULT = "nothing was measured yet"
"""What an interrupt means for a measurement."""


def bench_serve(
    target: Annotated[
        str,
        typer.Argument(metavar="URL|MODEL", help="A server, or a model to start one for."),
    ],
    streams: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Requests at once.")
    ] = "1,4,8,16",
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens of an answer.")] = 128,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rounds, after one to warm up.")
    ] = 3,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The server's key, if it has one.")
    ] = None,
    threads: options.Threads = None,
    variant: options.VariantName = None,
    as_json: Annotated[bool, options.as_json("bench")] = False,
) -> None:
    """Measure streams of a server, over HTTP."""
    counts = options.numbers("streams", streams)
    from kt.bench import serving
    from kt.chat.client import Client, find_url

    wanted = serving.Wanted(counts, tokens, repeat)
    if "://" not in target and max(counts) > options.MOST_STREAMS:
        raise UsageError(
            f"--streams {max(counts)}: a server of kt computes at most {options.MOST_STREAMS} at "
            "once"
        )
    given = {"--max-batch": max(counts), "--threads": threads, "--variant": variant}
    with interrupt.means(NO_RESULT), _server(target, given) as address:
        url = find_url(address, settings.load().home, render.note)
        with closing(Client(url, api_key)) as client:
            name = client.model()
        bench_view.shown(
            lambda: serving.bench(url, name, wanted, api_key=api_key, say=render.note),
            _show,
            as_json=as_json,
        )


def _server(target: str, given: Mapping[str, object]) -> AbstractContextManager[str]:
    """The URL that was typed, or that of a server for a model; given: its options."""
    if "://" in target:
        return nullcontext(target)
    from kt import catalog
    from kt.bench import own_server

    entry = catalog.resolve(target)
    runnable.check(entry)
    runnable.files(entry)
    words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    return own_server.started(target, words)


def _show(report: Report) -> None:
    """Every number of streams beside the first one."""
    from kt.bench.serving import ratio

    wanted = report.wanted
    render.result(f"{report.model} at {report.url}: {wanted.tokens} tokens a stream, greedy")
    headers: list[tuple[str, render.Justify]] = [
        ("STREAMS", "right"),
        ("TOKENS/s MEDIAN", "right"),
        ("BEST", "right"),
        ("RATIO", "right"),
        ("FIRST MS P50", "right"),
        ("P99", "right"),
        ("GAP MS P50", "right"),
        ("P90", "right"),
        ("P99", "right"),
    ]
    rows = [
        [
            str(point.streams),
            f"{point.rate:.1f}",
            f"{point.best_rate:.1f}",
            f"{ratio(point, report.points[0]):.2f}",
            *(f"{point.first(p) * 1e3:.1f}" for p in (50, 99)),
            *(f"{point.gap(p) * 1e3:.2f}" for p in (50, 90, 99)),
        ]
        for point in report.points
    ]
    render.table(headers, rows)
    first = report.points[0].streams
    render.note(
        f"RATIO: tokens per second of all streams together, against {first} "
        f"{'stream' if first == 1 else 'streams'}. FIRST: until a stream's first token; GAP: from "
        "one to the next."
    )
