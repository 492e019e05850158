"""A folder that `kt convert` wrote: packed matrices in safetensors files, mapped as they are.

A matrix, or all experts of a part one behind the other, is a U8 tensor named by its role; vectors
are F32 tensors; orders of columns (packed_orders.py) are I32 tensors. kt_manifest.json says what
the bytes mean (docs/convert.md). It is written last, so a folder without it is not finished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from kt.errors import ModelError
from kt.weights.encodings import Encoding
from kt.weights.files import check_folder, read_bytes
from kt.weights.names import Place
from kt.weights.packed_orders import take_orders
from kt.weights.quant import I32, Quant
from kt.weights.safetensors_file import read_file
from kt.weights.tensor import Tensor

MANIFEST: Final = "kt_manifest.json"
UNFINISHED: Final = "kt_conversion.json"
GGUF_METADATA: Final = "gguf_metadata.json"
PLAIN: Final = 5
ORDERED: Final = 6
"""Versions of packed bytes and manifest: with columns and rows as the source has them, or some in
another order. kt writes the lowest that says all; 1 to 4 had scales in other places."""
LAYOUTS: Final = (PLAIN, ORDERED)
ALIGNMENT: Final = 64
"""Bytes; kt_weight.data of native/include/kt.h needs it."""

_ROW: Final[Mapping[str, type]] = {
    "format": str,
    "n": int,
    "k": int,
    "count": int,
    "stride": int,
    "relative_error": float,
    "norm": float,
}
_SOME_ROWS: Final[Mapping[str, type]] = {
    "worst": int,
    "worst_relative_error": float,
    "columns": str,
    "rows": str,
}
_PACKED_ID: Final = -2  # no number of GGUF or of kt.h: such data goes to the kernels as it is
_EXPERTS: Final = re.compile(r"layers\.(\d+)\.experts\.(gate|up|down)")
_LAYER: Final = re.compile(r"layers\.(\d+)\..+")


@dataclass(frozen=True)
class PackedFolder:
    """config: as in config.json. gguf_metadata: of the GGUF file it was converted from, if so."""

    config: dict[str, Any]
    tensors: list[Tensor]
    gguf_metadata: Mapping[str, Any] | None


def is_packed(tensor: Tensor) -> bool:
    """Whether the data of `tensor` is already what the kernels read."""
    return tensor.encoding.id == _PACKED_ID


def is_packed_folder(folder: Path) -> bool:
    """True for what `kt convert` wrote, finished or not."""
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


def packed_place(name: str) -> Place:
    """The place of a tensor in such a folder: its name is its role."""
    match = _EXPERTS.fullmatch(name)
    if match:
        return Place("", int(match[1]), match[2])
    match = _LAYER.fullmatch(name)
    return Place(name, int(match[1]) if match else -1)


def read_manifest(folder: Path) -> dict[str, Any]:
    """kt_manifest.json. Raises ModelError if it is not there or of another layout."""
    check_folder(folder)
    path = folder / MANIFEST
    if not path.is_file() and not (folder / UNFINISHED).is_file():
        raise ModelError(
            f"{folder} is not a conversion: {MANIFEST} is not in it",
            hint="Name a folder that `kt convert` wrote.",
        )
    if not path.is_file():
        raise ModelError(
            f"{folder} is a conversion that is not finished",
            hint="The same `kt convert` command continues it.",
        )
    try:
        manifest = json.loads(read_bytes(path))
        layout = manifest["kt_packed"]
        if layout in LAYOUTS:
            checked_files(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    if layout not in LAYOUTS:
        raise ModelError(
            f"{folder} was converted by kt {manifest.get('kt_version')}, whose packed layout "
            f"{layout} is not one of this kt ({', '.join(map(str, LAYOUTS))})",
            hint="Convert the model again.",
        )
    return dict(manifest)


def checksum(manifest: Mapping[str, Any]) -> str:
    """sha256 of a manifest's own content; its "checksum" should be that."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def checked_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The records of a manifest's files, by name. Raises KeyError, TypeError, ValueError or
    AttributeError for what kt does not write.
    """
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name, record in files.items():
        _check(name, record, {"bytes": int, "sha256": str, "matrices": dict})
        for role, row in record["matrices"].items():
            _check(role, row, _ROW)
            _check(role, row, {key: kind for key, kind in _SOME_ROWS.items() if key in row})
    return files


def _check(name: str, record: Any, kinds: Mapping[str, type]) -> None:
    for key, kind in kinds.items():
        number = kind is float and type(record[key]) is int
        if type(record[key]) is not kind and not number:
            raise ValueError(f"{name}: {key} is {str(record[key])[:64]!r}")


def read_packed_folder(folder: Path) -> PackedFolder:
    """The tensors of a finished conversion. Raises ModelError for files that are missing or of
    another size; `kt convert --verify` checks their bytes.
    """
    manifest = read_manifest(folder)
    tensors: list[Tensor] = []
    try:
        for name, record in manifest["files"].items():
            tensors += _read_file(folder / Path(name).name, record)
        config = dict(manifest["config"])
        metadata = _read_metadata(folder) if manifest["source"]["kind"] == "gguf" else None
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise _damaged(folder / MANIFEST, f"{type(error).__name__}: {error}") from None
    return PackedFolder(config, tensors, metadata)


def _read_file(path: Path, record: dict[str, Any]) -> list[Tensor]:
    stored = read_file(path)
    size = path.stat().st_size
    if size != record["bytes"]:
        raise ModelError(
            f"{path} has {size} bytes, the manifest says {record['bytes']}",
            hint="Copy the folder again, or convert the model again.",
        )
    rows: dict[str, dict[str, Any]] = record["matrices"]
    missing = sorted(rows.keys() - stored.keys())
    if missing:
        raise ModelError(f"{path} lacks {', '.join(missing[:10])}", hint="Convert the model again.")
    orders = take_orders(path, rows, stored)
    return [
        _matrix(path, tensor, rows[name], orders.get(name)) if name in rows else tensor
        for name, tensor in stored.items()
    ]


def _matrix(path: Path, stored: Tensor, row: dict[str, Any], columns: I32 | None) -> Tensor:
    """The bytes `stored` as the matrix, or the stack of experts, that the manifest describes."""
    name, data = stored.name, stored.data
    n, k, count, stride = (int(row[key]) for key in ("n", "k", "count", "stride"))
    if min(n, k, count, stride) < 1:
        raise _damaged(path.with_name(MANIFEST), f"{name} is {count} times {n} x {k} there")
    if stride * count != data.size:
        raise ModelError(f"{path}: {name} has {data.size} bytes, not {count} times {stride}")
    if data.ctypes.data % ALIGNMENT or stride % ALIGNMENT:
        raise ModelError(f"{path}: {name} does not lie at a multiple of {ALIGNMENT} bytes")
    stack = _EXPERTS.fullmatch(name) is not None
    packed_format = str(row["format"])
    encoding = Encoding(f"packed {packed_format}", _PACKED_ID, 1, 1, packed_format)
    quant = None
    if row.get("factors"):
        # Scales of whole matrices are all that is left apart.
        factor = np.asarray(row["factors"], np.float32).reshape(count)
        none = np.empty((count, 0, 0), np.float32)
        quant = Quant(packed_format, none if stack else none[0], "F32", (1, 1), factor=factor)
    shape = (count, n, k) if stack else (n, k)
    if columns is not None and not stack:
        columns = columns[0]
    return Tensor(name, shape, encoding, data, quant, columns=columns)


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / GGUF_METADATA
    try:
        values = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    return {key: _array(value) for key, value in values.items()}


def _array(value: Any) -> Any:
    """Numbers of an array are a numpy array, as the GGUF reader gives them."""
    return np.asarray(value) if isinstance(value, list) and _numbers(value) else value


def _numbers(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], (int, float))


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{path} is damaged: {why}", hint="Convert the model again.")
