"""A checkpoint becomes a folder of packed files: file by file, one matrix in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from kt import __version__
from kt.convert.calibration import Calibration, Importance
from kt.convert.destination import Destination
from kt.convert.layout import FileLayout, Matrix, layout
from kt.convert.packer import Packer, check_error
from kt.convert.source import describe, small_files
from kt.convert.targets import check_group
from kt.errors import ModelError
from kt.kernels.library import Library
from kt.models import families
from kt.weights.checkpoint import Checkpoint
from kt.weights.dequantize import dequantize
from kt.weights.mapped import forget
from kt.weights.packed_folder import MANIFEST, ORDERED, PLAIN

Progress = Callable[[int, int], None]


@dataclass
class Conversion:
    """A checked and sized conversion; nothing is written yet. calibration: a text that tells what
    inputs count. group: columns of a scale, None: as the format has it. Raises ModelError, and
    UsageError for a group that the format has not.
    """

    checkpoint: Checkpoint
    target: str
    experts_only: bool = False
    repo: str | None = None
    calibration: Calibration | None = None
    group: int | None = None
    files: list[FileLayout] = field(init=False)

    def __post_init__(self) -> None:
        self.group = check_group(self.target, self.group)
        if self.checkpoint.kind == "packed":
            raise ModelError(
                f"{self.checkpoint.path} is converted already", hint="Convert the original model."
            )
        families.spec(self.checkpoint)  # a model that kt cannot run is not worth converting
        self.files = layout(
            self.checkpoint, self.target, self.group, experts_only=self.experts_only
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all weight files."""
        return sum(file.nbytes for file in self.files)

    @property
    def bytes_by_format(self) -> dict[str, int]:
        """Packed format -> bytes of its matrices."""
        found: dict[str, int] = {}
        for file in self.files:
            for matrix in file.matrices:
                found[matrix.format] = found.get(matrix.format, 0) + matrix.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def grown(self) -> int:
        """Matrices that take more room than in their own format."""
        return sum(
            matrix.nbytes > Matrix(matrix.name, matrix.tensors, own).nbytes
            for file in self.files
            for matrix in file.matrices
            if not matrix.name.endswith(".router")
            and (own := matrix.tensors[0].packed_format) != matrix.format
        )

    def run(
        self,
        folder: Path,
        library: Library,
        *,
        threads: int,
        progress: Progress | None = None,
        importance: Importance | None = None,
    ) -> dict[str, Any]:
        """Writes what is missing in `folder`; returns the manifest. progress(done, total) in bytes.
        importance: what the calibration measured.

        Raises UsageError (the folder holds something else), ModelError (the source), KtError (the
        disk). The same call continues after any of them.
        """
        destination = Destination(folder, self._identity)
        with destination.locked():
            if not self._is_whole(destination):
                destination.begin()
                report = progress or (lambda done, total: None)
                self._write(destination, Packer(library, threads, importance), report)
        return destination.manifest

    def finished(self, folder: Path) -> dict[str, Any] | None:
        """The manifest, if this conversion is all in `folder`. Raises UsageError if another is."""
        destination = Destination(folder, self._identity)
        return destination.manifest if self._is_whole(destination) else None

    def strangers(self, folder: Path) -> list[str]:
        """What lies in `folder` beside a conversion and is none of it, hidden files excepted."""
        small = {Path(name).parts[0] for name in small_files(self.checkpoint)}
        own = {MANIFEST, *small, *(file.name for file in self.files)}
        names = (path.name for path in folder.iterdir())
        return sorted(name for name in names if name not in own and not name.startswith("."))

    def _is_whole(self, destination: Destination) -> bool:
        names = {file.name for file in self.files}
        return destination.finished and destination.files.keys() == names

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return {
            "kt_packed": ORDERED if any(file.orders for file in self.files) else PLAIN,
            "kt_version": __version__,
            "format": self.target,
            "group": self.group,
            "experts_only": self.experts_only,
            "calibration": self.calibration.identity if self.calibration else None,
            "source": describe(self.checkpoint, self.repo),
            "config": self.checkpoint.config,
        }

    def _write(self, destination: Destination, packer: Packer, progress: Progress) -> None:
        left = [file for file in self.files if not destination.has(file.name, file.nbytes)]
        destination.clear(file.name for file in left)
        destination.check_room(sum(file.nbytes for file in left))
        done = self.nbytes - sum(file.nbytes for file in left)
        progress(done, self.nbytes)
        with packer:
            for file in left:
                job = _FileJob(file, packer, partial(_advance, progress, done, self.nbytes))
                digest = destination.write(file.name, file.nbytes, job.parts())
                record = {"bytes": file.nbytes, "sha256": digest, "matrices": job.records}
                destination.record(file.name, record)
                done += file.nbytes
        for name, content in small_files(self.checkpoint).items():
            (destination.folder / name).parent.mkdir(exist_ok=True)
            destination.write(name, len(content), [content])
        destination.files = {file.name: destination.files[file.name] for file in self.files}
        destination.finish()


def _advance(progress: Progress, before: int, total: int, at: int) -> None:
    progress(before + at, total)


class _FileJob:
    """Makes the bytes of one file. records: what the manifest says of its matrices."""

    def __init__(self, file: FileLayout, packer: Packer, progress: Callable[[int], None]) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self._file = file
        self._packer = packer
        self._progress = progress

    def parts(self) -> Iterator[Any]:
        """The file from its first to its last byte. Raises ModelError."""
        yield self._file.header
        at = len(self._file.header)
        for matrix in self._file.matrices:
            errors = [[0.0, 0.0] for _ in matrix.tensors]
            for piece in self._packer.pieces(matrix):
                check_error(matrix.name, matrix.format, piece)
                errors[piece.index][0] += piece.error
                errors[piece.index][1] += piece.norm
                yield piece.packed
                at += piece.packed.size
                self._progress(at)
            self.records[matrix.name] = _record(matrix, errors)
            forget(matrix.tensors)
        for tensor in self._file.vectors:
            yield dequantize(tensor).reshape(-1).view("u1")
        for order in self._file.orders:
            for index in range(len(order.tensors)):
                yield order.of(index).view("u1")
        self._progress(self._file.nbytes)


def _record(matrix: Matrix, errors: list[list[float]]) -> dict[str, Any]:
    n, k = matrix.shape
    error, norm = (sum(column) for column in zip(*errors, strict=True))
    relative = [_relative(*pair) for pair in errors]
    worst = max(range(len(relative)), key=relative.__getitem__)
    record: dict[str, Any] = {
        "format": matrix.format,
        "n": n,
        "k": k,
        "count": len(matrix.tensors),
        "stride": matrix.stride,
        "relative_error": _relative(error, norm),
        "norm": float(f"{norm**0.5:.6g}"),
    }
    if len(relative) > 1:
        record |= {"worst": worst, "worst_relative_error": relative[worst]}
    orders = {"columns": matrix.columns, "rows": matrix.rows}
    record |= {key: order.name for key, order in orders.items() if order}
    quants = [tensor.quant for tensor in matrix.tensors]
    if matrix.format == matrix.tensors[0].packed_format:
        factors = [quant.factor_value() for quant in quants if quant and quant.factor is not None]
        record |= {"factors": factors} if factors else {}
    return record


def _relative(error: float, norm: float) -> float:
    return float(f"{(error / norm) ** 0.5:.4g}") if norm else 0.0
