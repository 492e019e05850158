"""`kt convert`: a checkpoint into packed files that `kt run` maps as they are."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt import catalog, settings
from kt.cli import convert_view, interrupt, options, render, runnable
from kt.errors import UsageError

if TYPE_CHECKING:
    from kt.catalog import Entry
    from kt.convert.convert import Conversion


class Format(str, Enum):
    """The values of --format."""

    INT8 = "int8"
    INT4 = "int4"
    INT4M = "int4m"
    FP8 = "fp8"
    BF16 = "bf16"
    F16 = "f16"
    NATIVE = "native"


def convert(
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help=options.MODEL_HELP),
    ] = None,
    dest: Annotated[
        str | None, typer.Argument(metavar="DEST", help="A folder: new, empty, or to continue.")
    ] = None,
    target: Annotated[
        Format | None, typer.Option("--format", help="How weights are stored.")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(metavar="N", help="int8, int4, int4m: columns of a scale: 32, 64 or 128."),
    ] = None,
    experts_only: Annotated[
        bool, typer.Option("--experts-only", help="All but the experts keep their own format.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="int4: a text; inputs that are large in it count for more."
        ),
    ] = None,
    threads: options.Threads = None,
    verify: Annotated[
        str | None,
        typer.Option(metavar="DEST", help="Only read a conversion again and check its bytes."),
    ] = None,
    dry_run: Annotated[bool, options.dry_run("the sizes and write nothing")] = False,
    as_json: Annotated[bool, options.as_json("convert")] = False,
) -> None:
    """Convert a model once, so that it loads at once on any machine.

    The same command continues a conversion that was stopped.
    """
    if verify is not None:
        others = {
            "SOURCE": source,
            "DEST": dest,
            "--format": target,
            "--group": group,
            "--experts-only": experts_only or None,
            "--calibration": calibration,
            "--threads": threads,
            "--dry-run": dry_run or None,
        }
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise UsageError(
                f"--verify goes alone, or with --json; here it is with {', '.join(given)}",
                hint="kt convert --verify DEST",
            )
        _verify(_folder(verify), as_json)
        return
    if source is None or dest is None or target is None:
        needed = {"SOURCE": source, "DEST": dest, "--format": target}
        missing = [name for name, value in needed.items() if value is None]
        formats = ", ".join(one.value for one in Format)
        raise UsageError(
            f"kt convert lacks {', '.join(missing)} (formats: {formats})",
            hint="kt convert owner/name ./model-int4 --format int4",
        )
    if calibration is not None and target not in (Format.INT4, Format.INT4M):
        raise UsageError("--calibration goes with --format int4 and int4m")
    from kt.convert.targets import check_group

    folder = _folder(dest)
    entry = catalog.resolve(source)
    runnable.check(entry)
    check_group(target.value, group)
    conversion = _prepare(entry, target.value, group, experts_only, dry_run)
    if dry_run:
        _warn_of_growth(conversion)
        convert_view.show_sizes(conversion, as_json=as_json)
        return
    manifest, already = _run(conversion, folder, entry.name, threads, calibration)
    strangers = conversion.strangers(folder)
    if strangers:
        names = ", ".join(strangers[:5]) + (", ..." if len(strangers) > 5 else "")
        render.warn(f"{folder} also holds what kt did not write and does not read: {names}")
    convert_view.show_report(manifest, folder, already=already, as_json=as_json)


def _warn_of_growth(conversion: Conversion) -> None:
    if conversion.target != Format.NATIVE.value and conversion.grown:
        render.warn(
            f"{conversion.grown} matrices take more room as {conversion.target} than they take "
            "now, and are no better for it; --format native keeps them"
        )


def _folder(dest: str) -> Path:
    """DEST. Raises UsageError if it is empty, as of a variable that is not set: Path would take it
    for the current folder.
    """
    if not dest.strip():
        raise UsageError("DEST is empty", hint="Name a folder; `.` is the current one.")
    return Path(dest)


def _prepare(
    entry: Entry, target: str, group: int | None, experts_only: bool, dry_run: bool
) -> Conversion:
    from kt.convert.convert import Conversion
    from kt.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(_locate(entry, dry_run))
    return Conversion(checkpoint, target, experts_only, entry.repo, group=group)


def _locate(entry: Entry, dry_run: bool) -> Path:
    """The source's files on this machine, downloaded if need be (never by a dry run)."""
    if entry.path is not None:
        return entry.path
    from kt import download

    if dry_run:
        if not download.is_cached(entry):
            raise UsageError(
                f"{entry.repo} is not downloaded yet, and sizes are counted from its files",
                hint="Leave --dry-run out to download it.",
            )
        return download.fetch(entry, offline=True)
    wanted = settings.load()
    with interrupt.means(download.STOPPED), render.progress(f"Downloading {entry.repo}") as update:
        return download.fetch(
            entry,
            token=wanted.hf_token,
            offline=wanted.offline,
            progress=update,
            warn=render.warn,
        )


def _run(
    conversion: Conversion, dest: Path, name: str, threads: int | None, text: Path | None
) -> tuple[dict[str, Any], bool]:
    """The manifest, and whether there was nothing to do."""
    from kt.convert.calibration import Calibration
    from kt.kernels.library import load
    from kt.machine.survey import survey
    from kt.machine.workers import limited

    machine = survey(gpus=False)
    variant = options.chosen_variant(machine, None).value.name
    library = load(variant)
    conversion.calibration = Calibration(text, library) if text else None
    workers = limited(machine.worker_cpus, threads, f"--threads {threads}")
    manifest = conversion.finished(dest)
    if manifest is not None:
        return manifest, True
    _warn_of_growth(conversion)
    importance = None
    with interrupt.means("the same command continues the conversion"):
        if conversion.calibration:
            with render.progress(f"Reading {text} with {name}", unit="pieces") as update:
                measure = conversion.calibration.measure
                importance = measure(conversion.checkpoint, machine, update)
        with render.progress(f"Converting {name}") as update:
            count = len(workers.value)
            manifest = conversion.run(
                dest, library, threads=count, progress=update, importance=importance
            )
            return manifest, False


def _verify(folder: Path, as_json: bool) -> None:
    from kt.convert.report import verify

    with render.progress(f"Reading {folder}") as update:
        manifest = verify(folder, update)
    convert_view.show_verified(manifest, folder, as_json=as_json)
