"""`kt bench`: a model, one MoE layer, or attention, against this machine's limits; a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kt.cli import bench_view, interrupt, options, render, runnable
from kt.cli.bench_serve import NO_RESULT, bench_serve
from kt.cli.command import Command, Group
from kt.units import Choice

if TYPE_CHECKING:
    from kt.machine.facts import Machine

DEFAULT = "model"
Report = TypeVar("Report")


class _DefaultGroup(Group):
    """`kt bench MODEL` is `kt bench model MODEL`; `./experts` names a file of that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=_DefaultGroup,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure a model, one MoE layer, or attention, against the machine's limits.\n\n"
    "kt bench MODEL measures a model, kt bench experts and kt bench attention a layer, "
    "kt bench serve a server.",
)

bench.command("serve", cls=Command)(bench_serve)

AsJson = Annotated[bool, options.as_json("bench")]
LayerRepeat = Annotated[
    int, typer.Option("--repeat", min=2, metavar="N", help="Least repetitions of a measurement.")
]
Seconds = Annotated[
    float, typer.Option(min=0, max=3600, metavar="S", help="Least seconds of a measurement.")
]


@bench.command("model", cls=Command)
def bench_model(
    model: options.ModelName,
    prefill: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="Prompt lengths. Default: 128,512.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]", help="Positions before the decoded tokens. Default: 128,1024."
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="Sequences at once. Default: 1,4.")
    ] = None,
    decode: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Tokens decoded in a repetition; 0: only prefill."),
    ] = 16,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Repetitions, after one to warm up.")
    ] = 3,
    kv_format: options.KvFormatName = None,
    threads: options.Threads = None,
    variant: options.VariantName = None,
    as_json: AsJson = False,
) -> None:
    """Measure prefill and decode of a model (the default: `kt bench MODEL`)."""
    from kt import catalog

    numbers = _numbers(prefill=prefill, context=context, batch=batch)
    entry = catalog.resolve(model)
    runnable.check(entry)
    from kt.bench import model as measure

    machine = _survey()
    prepared, wanted = measure.ready(
        runnable.files(entry),
        machine,
        measure.Wanted(**numbers, decode=decode, repeat=repeat),
        name=entry.name,
        variant=options.chosen_variant(machine, variant),
        threads=threads,
        kv_format=kv_format.value if kv_format else None,
    )
    with closing(prepared.checkpoint), interrupt.means(NO_RESULT):
        with render.progress(f"Loading {entry.name}") as update:
            executor = measure.load(prepared, update)
        with closing(executor):
            bench_view.shown(
                partial(
                    measure.bench,
                    prepared,
                    executor,
                    wanted,
                    cpu=machine.cpu.model,
                    say=render.note,
                ),
                bench_view.show_model,
                as_json=as_json,
            )


@bench.command("experts", cls=Command)
def bench_experts(
    hidden: Annotated[int, typer.Option(metavar="N", help="Width of the hidden state.")],
    intermediate: Annotated[int, typer.Option(metavar="N", help="Width of an expert.")],
    experts: Annotated[int, typer.Option(metavar="N", help="Experts of the layer.")],
    top_k: Annotated[int, typer.Option(metavar="N", help="Experts that a token chooses.")],
    weight_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help="bf16, int8, int4, q4_k, ...: docs/bench.md."
        ),
    ],
    tokens: Annotated[
        str, typer.Option(metavar="T[,T...]", help="Tokens computed at once.")
    ] = "1,8,128,512",
    layers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Layers to rotate over. Default: 1 GiB of weights or more."
        ),
    ] = None,
    repeat: LayerRepeat = 5,
    seconds: Seconds = 1.0,
    threads: options.Threads = None,
    variant: options.VariantName = None,
    as_json: AsJson = False,
) -> None:
    """Measure one MoE layer with random weights."""
    counts = options.numbers("tokens", tokens)
    from kt.bench import experts as measure
    from kt.bench import formats
    from kt.bench.expert_weights import Sizes

    wanted = measure.Wanted(
        Sizes(hidden, intermediate, experts, top_k),
        formats.find(weight_format),
        counts,
        layers,
        repeat,
        seconds,
    )
    wanted.sizes.check(wanted.format)
    show = partial(bench_view.shown, show=bench_view.show_experts, as_json=as_json)
    _bench_layer(partial(measure.bench, wanted), show, threads, variant)


@bench.command("attention", cls=Command)
def bench_attention(
    heads: Annotated[int, typer.Option(metavar="N", help="Query heads.")] = 32,
    kv_heads: Annotated[int, typer.Option(metavar="N", help="Heads of keys and values.")] = 4,
    head_dim: Annotated[int, typer.Option(metavar="N", help="Width of a head.")] = 128,
    context: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Positions that are attended to.")
    ] = "4096,8192,16384,32768",
    prefill: Annotated[
        int, typer.Option(min=0, metavar="N", help="Tokens of a chunk; 0: only decode.")
    ] = 512,
    kv_format: options.KvFormatName = None,
    repeat: LayerRepeat = 5,
    seconds: Seconds = 1.0,
    threads: options.Threads = None,
    variant: options.VariantName = None,
    as_json: AsJson = False,
) -> None:
    """Measure attention over a long context (default: the heads of Qwen3-30B-A3B)."""
    contexts = options.numbers("context", context)
    from kt.bench import attention as measure
    from kt.bench.attention_layer import Heads

    layer = Heads(heads, kv_heads, head_dim, kv_format.value if kv_format else "bf16")
    wanted = measure.Wanted(layer, contexts, prefill, repeat, seconds)
    show = partial(bench_view.shown, show=bench_view.show_attention, as_json=as_json)
    _bench_layer(partial(measure.bench, wanted), show, threads, variant)


def _bench_layer(
    bench: Callable[..., Report],
    show: Callable[[Callable[[], Report]], None],
    threads: int | None,
    variant: str | None,
) -> None:
    """Hands `show` the measurement of a layer, on the workers and the kernels that the options ask
    for."""
    from kt.kernels.library import load
    from kt.machine.workers import limited

    machine = _survey()
    chosen = options.chosen_variant(machine, variant)
    cpus = limited(machine.worker_cpus, threads, f"--threads {threads}")
    measure = partial(
        bench,
        load(chosen.value.name),
        cpus.value,
        variant=Choice(chosen.value.name, chosen.reason),
        threads=Choice(len(cpus.value), cpus.reason),
        cpu=machine.cpu.model,
        usable=machine.memory.usable,
        say=render.note,
    )
    with interrupt.means(NO_RESULT):
        show(measure)


def _survey() -> Machine:
    from kt.machine.survey import survey

    return survey(gpus=False)


def _numbers(**texts: str | None) -> dict[str, tuple[int, ...] | None]:
    """Option -> its numbers, without repetitions; None where it was left out. Raises UsageError."""
    return {
        name: None if text is None else options.numbers(name, text) for name, text in texts.items()
    }
