"""How `kt run` shows a machine, a plan, and one answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kt.cli import render
from kt.errors import DoesNotFit, KtError
from kt.units import format_bytes

if TYPE_CHECKING:
    from kt.download import Preview
    from kt.engine.handle import Handle
    from kt.machine.facts import Machine
    from kt.placement.plan import Plan

PARTS = {
    "embedding": "token embedding",
    "attention": "attention",
    "mlp": "dense MLP",
    "router": "routers",
    "experts": "experts",
    "norms": "norms",
    "head": "output head",
    "orders": "orders of columns",
    "kv_cache": "KV cache",
    "working": "working memory",
    "process": "Python and tokenizer",
    "grammar": "grammars",
}


def show_machine(machine: Machine) -> None:
    """A few lines about the machine; `kt doctor` shows all of it."""
    memory = machine.memory
    rows = [
        ("CPU", machine.cpu.model or machine.cpu.vendor, ""),
        ("memory", f"{format_bytes(memory.usable)} for kt", memory.usable_reason),
    ]
    rows += [
        (f"GPU {gpu.index}", f"{gpu.name}, {format_bytes(gpu.total)}", "not used")
        for gpu in machine.gpus
    ]
    render.facts("Machine", rows, to=render.stderr())


def show_plan(plan: Plan, *, as_json: bool, as_result: bool) -> None:
    """The plan: to stdout if it is what was asked for, else to stderr."""
    if as_json:
        render.json({"fits": True, "plan": plan.to_json()})
        return
    console = render.stdout() if as_result else render.stderr()
    rows = [
        ("variant", plan.variant.value, plan.variant.reason),
        ("threads", str(len(plan.worker_cpus.value)), plan.worker_cpus.reason),
        ("context", f"{plan.context.value} tokens", plan.context.reason),
        ("batch", f"{plan.max_batch.value} requests", plan.max_batch.reason),
        ("KV format", plan.kv_format.value, plan.kv_format.reason),
        ("KV pages", str(plan.n_pages.value), plan.n_pages.reason),
    ]
    if plan.loading.value != "packed":
        rows.append(("weights", plan.loading.value, plan.loading.reason))
    render.facts(f"Plan for {plan.model}", rows, to=console)
    memory = [(PARTS[name], format_bytes(count)) for name, count in plan.parts.items()]
    if plan.mapped_bytes:
        memory.append(("of it mapped", f"{format_bytes(plan.mapped_bytes)} of the converted files"))
    memory.append(("in all", f"{format_bytes(plan.needed)} of {format_bytes(plan.usable.value)}"))
    render.table((("", "left"), ("", "left")), memory, title="Memory", to=console)
    for note in plan.notes:
        render.warn(note)


def show_download(found: Preview, machine: Machine, *, as_json: bool) -> None:
    """What there is to say of a model before its files are here."""
    weights, others = sum(found.weights.values()), sum(found.others.values())
    free = machine.disk.free if machine.disk else None
    if as_json:
        download = {
            "repo": found.repo,
            "commit": found.commit,
            "files": {**found.weights, **found.others},
            "weight_bytes": weights,
            "missing_bytes": found.missing,
            "folder": str(found.folder),
            "free_bytes": free,
        }
        render.json({"fits": None, "download": download})
        return
    rows = [
        ("files", f"{len(found.weights)} of weights, {format_bytes(weights)}", ""),
        ("not here yet", format_bytes(found.missing), f"to {found.folder}"),
        ("free there", "unknown" if free is None else format_bytes(free), ""),
        ("memory for kt", format_bytes(machine.memory.usable), machine.memory.usable_reason),
    ]
    if found.others:
        rows.insert(1, ("", f"{len(found.others)} others, {format_bytes(others)}", ""))
    render.facts(f"Download of {found.repo} at {found.commit[:12]}", rows)
    if free is not None and found.missing > free:
        render.warn("that is more than is free there; HF_HOME names another disk")
    render.note("The plan is made from the files: without --dry-run they are downloaded.")


@contextmanager
def failures(*, as_json: bool) -> Iterator[None]:
    """With --json a program finds on stdout why there is no plan; people find it on stderr."""
    from kt.placement.refusal import PlanDoesNotFit

    try:
        yield
    except KtError as problem:
        if as_json:
            reason = {"status": problem.exit_code, "message": problem.message, "hint": problem.hint}
            plan = {"plan": problem.plan} if isinstance(problem, PlanDoesNotFit) else {}
            fits = False if isinstance(problem, DoesNotFit) else None
            render.json({"fits": fits, **plan, "error": reason})
        raise


def show_answer(handle: Handle) -> None:
    """Streams the text to stdout, then a line about speed to stderr. Raises KtError if the engine
    failed."""
    from kt.engine.request import Delta

    for event in handle:
        if isinstance(event, Delta):
            render.result(event.text, end="")
            continue
        render.result("")
        if event.reason == "error":
            raise KtError(f"the model failed: {event.message}")
        seconds = event.timings.decode
        rate = f", {(event.completion_tokens - 1) / seconds:.1f} tokens/s" if seconds else ""
        render.note(
            f"{event.prompt_tokens} prompt tokens, {event.completion_tokens} tokens answered{rate}"
        )
