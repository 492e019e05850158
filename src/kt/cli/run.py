"""`kt run`: from a model's name to a server on this machine."""

from __future__ import annotations

from contextlib import closing, nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt import catalog, settings, words
from kt.cli import interrupt, options, plan_view, render, runnable
from kt.errors import UsageError
from kt.units import format_bytes

if TYPE_CHECKING:
    from kt.catalog import Entry
    from kt.download import Preview
    from kt.engine.launch import Prepared, Running
    from kt.machine.facts import Machine

PROMPT_TOKENS = 512
"""The longest answer to --prompt."""


class Speculation(str, Enum):
    """The values of --speculate."""

    OFF = "off"
    NGRAM = "ngram"


def run(
    model: options.ModelName,
    question: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="The same as --prompt.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer this on stdout and end; no server.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on; others than loopback need a key."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Clients must send it; may be repeated.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Longest prompt and answer, in tokens; 16 or more. Default: what fits.",
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.MOST_STREAMS,
            metavar="N",
            help="Requests computed at once. Default: 8.",
        ),
    ] = None,
    kv_format: options.KvFormatName = None,
    threads: options.Threads = None,
    variant: options.VariantName = None,
    max_queue: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Requests that may wait; more are told to come back."
        ),
    ] = 256,
    request_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="S", help="Seconds an answer may take. Default: any."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Web pages of ORIGIN may ask; may be repeated."),
    ] = None,
    tool_form: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="How the model writes tool calls. Default: its template's."
        ),
    ] = None,
    reasoning_form: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How the model marks thoughts. Default: its template's."),
    ] = None,
    speculate: Annotated[
        Speculation, typer.Option(help="Guess greedy answers' next tokens from their own text.")
    ] = Speculation.OFF,
    unload_after: Annotated[
        float | None,
        typer.Option(
            min=1.0, metavar="S", help="Seconds without requests before memory is given back."
        ),
    ] = None,
    dry_run: Annotated[bool, options.dry_run("the plan and load nothing")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: the plan as JSON.")
    ] = False,
) -> None:
    """Load a model and serve it on this machine, for `kt chat` and any OpenAI client.

    The survey, the plan and the progress go to stderr.
    """
    if as_json and not dry_run:
        raise UsageError(
            "--json goes with --dry-run", hint="The running server shows its plan at /health."
        )
    # These bring numpy, which --help shall not wait for.
    from kt.engine import launch

    wanted = settings.load()
    if question:
        if prompt is not None:
            raise UsageError("there are two prompts", hint='kt run MODEL --prompt "one question"')
        prompt = " ".join(question)
    if prompt is not None:
        prompt = words.typed(prompt)
        if not prompt.strip():
            raise UsageError("the prompt is empty", hint='kt run MODEL --prompt "one question"')
    forms = {"tool_form": tool_form, "reasoning_form": reasoning_form}
    serving = prompt is None and not dry_run
    if serving:
        _check_serving(forms, cors or [], api_key or [])
    with plan_view.failures(as_json=as_json):
        entry = catalog.resolve(model)
        runnable.check(entry)
    with (
        plan_view.failures(as_json=as_json),
        closing(_reserve(host, port, api_key)) if serving else nullcontext() as listener,
    ):
        machine = _survey()
        # A CPU that cannot run kt is told so before a download, not after.
        chosen = options.chosen_variant(machine, variant)
        if not as_json:
            plan_view.show_machine(machine)
        path = _locate(entry, wanted, machine, dry_run)
        if path is None:
            found = _preview(entry, wanted, machine)
            plan_view.show_download(found, machine, as_json=as_json)
            return
        prepared = launch.prepare(
            path,
            machine,
            name=entry.name,
            variant=chosen,
            context=context,
            max_batch=max_batch,
            threads=threads,
            kv_format=kv_format.value if kv_format else None,
            serving=prompt is None,
        )
        plan_view.show_plan(prepared.plan, as_json=as_json, as_result=dry_run)
        if dry_run:
            return
        with _launch(prepared, speculate, max_queue, unload_after) as running:
            if prompt is not None:
                _answer(running, prompt)
            else:
                names = sorted({model, entry.repo or model, str(path.resolve())} - {entry.name})
                info: dict[str, Any] = {"model": entry.name, "aliases": names, **forms}
                info["plan"] = prepared.plan.to_json()
                limits = {"api_keys": api_key or [], "timeout": request_timeout, "cors": cors or []}
                _serve(running, prepared, listener, info, limits)


def _survey() -> Machine:
    from kt.machine.survey import survey

    return survey()


def _reserve(host: str, port: int, api_keys: list[str] | None) -> Any:
    """The port is taken before anything long begins, so that a taken one is told at once."""
    from kt.server.serve import reserve

    return reserve(host, port, api_keys=api_keys or ())


def _check_serving(forms: dict[str, str | None], cors: list[str], api_keys: list[str]) -> None:
    """What create_app would refuse is told before anything long begins."""
    from kt.server.app import check_cors
    from kt.server.profile import profile_of

    profile_of("", forms)
    check_cors(cors, api_keys)


def _locate(
    entry: Entry, wanted: settings.Settings, machine: Machine, dry_run: bool
) -> Path | None:
    """The model's files on this machine, downloaded if need be; None: not by a dry run."""
    if entry.path is not None:
        return entry.path
    from kt import download
    from kt.placement.plan import admit

    if entry.size_bytes and not (dry_run and download.is_cached(entry)):
        admit(entry.size_bytes, machine, entry.name)
    if dry_run:
        return download.fetch(entry, offline=True) if download.is_cached(entry) else None
    with interrupt.means(download.STOPPED), render.progress(f"Downloading {entry.repo}") as update:
        return download.fetch(
            entry,
            token=wanted.hf_token,
            offline=wanted.offline,
            progress=update,
            admit=lambda size: admit(size, machine, entry.name),
            warn=render.warn,
        )


def _preview(entry: Entry, wanted: settings.Settings, machine: Machine) -> Preview:
    """What a dry run tells of a model that is not here. Raises DoesNotFit, DownloadError."""
    from kt import download
    from kt.hub_errors import Unreachable
    from kt.placement.plan import admit

    # Without its files there is no plan, but the catalogue may know how large the weights are.
    absent = f"{entry.repo} is not downloaded yet"
    if entry.size_bytes:
        usable = format_bytes(machine.memory.usable)
        absent += f" (weights of {format_bytes(entry.size_bytes)}; kt may use {usable} of memory)"
    if wanted.offline:
        raise Unreachable(
            f"{absent}, and HF_HUB_OFFLINE keeps kt from asking the hub about it",
            hint="Connect and unset HF_HUB_OFFLINE, or give the path of a model on this machine.",
        )
    try:
        found = download.preview(entry, token=wanted.hf_token)
    except Unreachable as error:
        raise Unreachable(f"{absent}: {error.message}", hint=error.hint) from error
    admit(sum(found.weights.values()), machine, entry.name)
    return found


def _launch(
    prepared: Prepared, speculate: Speculation, max_queue: int, unload_after: float | None
) -> Running:
    from kt.engine.launch import launch

    with render.progress(f"Loading {prepared.name}") as update:
        return launch(
            prepared,
            progress=update,
            speculate="ngram" if speculate is Speculation.NGRAM else None,
            max_queue=max_queue,
            unload_after=unload_after,
        )


def _serve(
    running: Running, prepared: Prepared, listener: Any, info: dict[str, Any], limits: Any
) -> None:
    """info, limits: see create_app."""
    from kt.server.app import create_app
    from kt.server.sampling_defaults import from_checkpoint
    from kt.server.serve import serve

    render.log_to_stderr()
    defaults = from_checkpoint(prepared.checkpoint)
    app = create_app(running.engine, running.tokenizer, info, defaults=defaults, **limits)
    serve(app, listener=listener, home=settings.load().home, ready=_ready)
    render.ended("stopped")


def _ready(url: str) -> None:
    render.result(f"Ready: {url}/v1  (OpenAI API)")
    render.note(f"Talk to it with `kt chat` in another terminal, or at {url}/ in a browser.")
    render.note("Ctrl-C ends it.")


def _answer(running: Running, prompt: str) -> None:
    """One greedy answer on stdout, as it comes."""
    from kt.engine.request import Request, Sampling

    tokenizer = running.tokenizer
    ids = (
        tokenizer.encode_chat([{"role": "user", "content": prompt}])
        if tokenizer.has_chat_template
        else tokenizer.encode(prompt)
    )
    request = Request(ids, Sampling(max_tokens=PROMPT_TOKENS, temperature=0.0))
    with interrupt.means("the answer is not whole"):
        plan_view.show_answer(running.engine.submit(request))
