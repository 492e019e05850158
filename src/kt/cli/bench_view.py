"""How `kt bench` shows what it measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kt.cli import render
from kt.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kt.bench.attention import AttentionPoint
    from kt.bench.attention import Report as AttentionReport
    from kt.bench.experts import ExpertPoint
    from kt.bench.experts import Report as ExpertReport
    from kt.bench.floors import Floors
    from kt.bench.model import ModelPoint
    from kt.bench.model import Report as ModelReport
    from kt.bench.point import Point


class Report(Protocol):
    """What every kind of bench gives."""

    def to_json(self) -> dict[str, Any]: ...


AnyReport = TypeVar("AnyReport", bound=Report)


def shown(
    measure: Callable[[], AnyReport], show: Callable[[AnyReport], None], *, as_json: bool
) -> None:
    """Shows what `measure` reports, also the part before an interrupt, which is passed on."""
    from kt.bench.cut import Cut

    try:
        report, cut = measure(), False
    except Cut as stop:
        report, cut = stop.report, True
    if as_json:
        render.json({**report.to_json(), "cut": cut})
    else:
        show(report)
    if cut:
        raise KeyboardInterrupt("the rest was not measured")


def show_model(report: ModelReport) -> None:
    """Prefill beside the arithmetic floor, decode beside the bandwidth floor."""
    plan = report.plan
    _head(plan.model, report.cpu, plan.variant.value, len(plan.worker_cpus.value))
    if report.prefill:
        _show_prefill(report.prefill)
    if report.decode:
        _show_decode(report.decode)
    _show_floors([p.point.floors for p in (*report.prefill, *report.decode)])


def show_experts(report: ExpertReport) -> None:
    """Every batch size beside both floors."""
    sizes = report.wanted.sizes
    name = (
        f"One MoE layer: hidden {sizes.hidden}, intermediate {sizes.intermediate}, "
        f"{sizes.experts} experts, top-{sizes.top_k}, {report.wanted.format.name}"
    )
    _head(name, report.cpu, report.variant.value, report.threads.value)
    render.note(
        f"{report.layers.value} layers in rotation, {format_bytes(report.weight_bytes)} "
        f"({report.layers.reason}); bandwidth of {report.read_from}"
    )
    headers: list[tuple[str, render.Justify]] = [
        ("TOKENS", "right"),
        ("MS MEDIAN", "right"),
        ("BEST", "right"),
        ("REST", "right"),
        ("EXPERTS", "right"),
        ("GB/s", "right"),
        ("Gop/s", "right"),
        ("READ FLOOR", "right"),
        ("OP FLOOR", "right"),
        ("REACHED", "right"),
        ("BEST", "right"),
        ("ERROR", "right"),
    ]
    render.table(headers, [_expert_cells(point) for point in report.points])
    _show_floors([p.point.floors for p in report.points])


def show_attention(report: AttentionReport) -> None:
    """Decode beside the bandwidth floor, prefill beside the arithmetic floor."""
    heads = report.wanted.heads
    name = (
        f"One attention layer: {heads.n_heads} heads of {heads.head_dim}, {heads.n_kv_heads} KV "
        f"heads in {heads.kv_format}"
    )
    _head(name, report.cpu, report.variant.value, report.threads.value)
    render.note(
        f"{report.pages.value} KV pages a layer in rotation, {format_bytes(report.kv_bytes)} "
        f"({report.pages.reason})"
    )
    _show_attention("Decode of one token", report.decode)
    if report.prefill:
        title = f"Prefill of {report.wanted.prefill} tokens after so many positions"
        _show_attention(title, report.prefill)
    _show_floors([p.point.floors for p in (*report.decode, *report.prefill)])


def _show_attention(title: str, points: Sequence[AttentionPoint]) -> None:
    names = "CONTEXT,MS MEDIAN,BEST,GB/s,Gop/s,READ FLOOR,OP FLOOR,REACHED,BEST,ERROR"
    headers: list[tuple[str, render.Justify]] = [(name, "right") for name in names.split(",")]
    render.table(headers, [_attention_cells(point) for point in points], title=title)


def _attention_cells(row: AttentionPoint) -> list[str]:
    return [str(row.context), *_time_cells(row.point), *_floor_cells(row.point, row.error)]


def _time_cells(point: Point) -> list[str]:
    return [_ms(point.timing.median), _ms(point.timing.best)]


def _floor_cells(point: Point, error: float) -> list[str]:
    """Of a layer: its rates, its floors, how much of them it reached, and its relative error."""
    seconds = point.timing.median or float("inf")
    return [
        f"{point.nbytes / seconds / 1e9:.1f}",
        f"{point.all_operations / seconds / 1e9:.0f}",
        _ms(point.bandwidth_seconds),
        _ms(point.arithmetic_seconds),
        f"{point.median.larger:.0%}",
        f"{point.best.larger:.0%}",
        f"{error:.1e}",
    ]


def _head(name: str, cpu: str, variant: str, threads: int) -> None:
    render.result(f"{name}\n{cpu}, {variant}, {threads} {'thread' if threads == 1 else 'threads'}")


def _expert_cells(row: ExpertPoint) -> list[str]:
    return [
        str(row.tokens),
        *_time_cells(row.point),
        f"{row.rest.median / row.call.median:.1%}",
        f"{row.active:.0f}",
        *_floor_cells(row.point, row.error),
    ]


def _show_prefill(points: Sequence[ModelPoint]) -> None:
    headers: list[tuple[str, render.Justify]] = [
        ("TOKENS", "right"),
        ("TOKENS/s MEDIAN", "right"),
        ("BEST", "right"),
        ("Gop/TOKEN", "right"),
        ("Gop/s", "right"),
        ("FLOOR TOKENS/s", "right"),
        ("REACHED", "right"),
        ("BEST", "right"),
    ]
    rows = [
        [
            str(row.tokens),
            f"{row.rate:.1f}",
            f"{row.best_rate:.1f}",
            f"{row.point.all_operations / row.tokens / 1e9:.3f}",
            f"{row.point.all_operations / row.point.timing.median / 1e9:.0f}",
            f"{row.tokens / row.point.arithmetic_seconds:.1f}",
            f"{row.point.median.arithmetic:.0%}",
            f"{row.point.best.arithmetic:.0%}",
        ]
        for row in points
    ]
    render.table(headers, rows, title="Prefill, beside the arithmetic floor")


def _show_decode(points: Sequence[ModelPoint]) -> None:
    headers: list[tuple[str, render.Justify]] = [
        ("CONTEXT", "right"),
        ("BATCH", "right"),
        ("TOKENS/s MEDIAN", "right"),
        ("BEST", "right"),
        ("READ/TOKEN", "right"),
        ("OF IT KV", "right"),
        ("GB/s", "right"),
        ("FLOOR TOKENS/s", "right"),
        ("REACHED", "right"),
        ("BEST", "right"),
    ]
    rows = [
        [
            str(row.context),
            str(row.batch),
            f"{row.rate:.1f}",
            f"{row.best_rate:.1f}",
            format_bytes(row.point.nbytes / row.tokens),
            format_bytes(row.work.parts["attention"].nbytes / row.tokens),
            f"{row.point.nbytes / row.point.timing.median / 1e9:.1f}",
            f"{row.tokens / row.point.bandwidth_seconds:.1f}",
            f"{row.point.median.bandwidth:.0%}",
            f"{row.point.best.bandwidth:.0%}",
        ]
        for row in points
    ]
    render.table(headers, rows, title="Decode, beside the bandwidth floor")


def _show_floors(floors: Sequence[Floors]) -> None:
    """Every floor before and after every row: how noisy the machine was."""
    rows = [["memory reads", "GB/s", *_pairs([(f.before.read, f.after.read) for f in floors])]]
    for kind in floors[0].before.peaks:
        pairs = [(f.before.peaks[kind], f.after.peaks[kind]) for f in floors]
        rows.append([kind, "Gop/s", *_pairs(pairs)])
    headers: list[tuple[str, render.Justify]] = [("", "left"), ("", "left")]
    headers += [("", "right") for _ in floors]
    render.table(headers, rows, title="Floors before and after every row")


def _pairs(samples: Sequence[tuple[float, float]]) -> list[str]:
    return [f"{before / 1e9:.1f} {after / 1e9:.1f}" for before, after in samples]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.1 else f"{seconds * 1e3:.1f}"
