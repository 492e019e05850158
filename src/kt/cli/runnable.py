"""Which models of the catalogue this version of kt can run, and where their files are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kt.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kt.catalog import Entry

READABLE_FORMATS = frozenset({"bf16", "fp8_block", "fp8_channel", "mxfp8", "mxfp4", "int4_group32"})


def why_not(entry: Entry) -> str:
    """Why `entry` cannot run, as far as the catalogue tells; "" if nothing speaks against it."""
    from kt.models.families import FAMILIES

    if entry.family is not None and entry.family not in FAMILIES:
        return f"family {entry.family} is not implemented"
    if entry.format is not None and entry.format not in READABLE_FORMATS:
        return f"format {entry.format} is not implemented"
    return ""


def check(entry: Entry) -> None:
    """Raises ModelError for what cannot run, before anything of it is fetched."""
    reason = why_not(entry)
    if reason:
        raise ModelError(
            f"{entry.name} cannot run with this version of kt: {reason}",
            hint="`kt models` shows which models can.",
        )


def files(entry: Entry) -> Path:
    """The model's files on this machine: nothing is downloaded. Raises UsageError, or DoesNotFit
    where a download would be in vain.
    """
    if entry.path is not None:
        return entry.path
    from kt import download
    from kt.machine.survey import survey
    from kt.placement.plan import admit

    if not download.is_cached(entry):
        admit(entry.size_bytes or 0, survey(gpus=False), entry.name)
        raise UsageError(
            f"{entry.repo} is not downloaded yet", hint=f"kt run {entry.typed} downloads it."
        )
    return download.fetch(entry, offline=True)
