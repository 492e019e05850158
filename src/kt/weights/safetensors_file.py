"""Safetensors checkpoints: one file, or shards with an index, read from memory maps.

Format: https://huggingface.co/docs/safetensors. The header is checked against the file's size, and
everything that is wrong with a checkpoint is reported in one error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from kt import split_names
from kt.errors import ModelError
from kt.weights.encodings import BY_NAME, Encoding
from kt.weights.files import Bytes, map_file, read_bytes
from kt.weights.tensor import Tensor

INDEX: Final = "model.safetensors.index.json"
MAX_HEADER: Final = 100_000_000  # the format's own limit, bytes
IMPLEMENTED: Final = ("F32", "F16", "BF16")

# Dtypes that can lie in a checkpoint without being weights of a supported model.
_BYTES: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


def is_safetensors_folder(folder: Path) -> bool:
    """True if `folder` holds safetensors weights."""
    return (folder / INDEX).is_file() or any(folder.glob("*.safetensors"))


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder by name. Raises one ModelError that lists every fault."""
    if not os.path.isfile(folder / INDEX):
        try:
            return read_file(_only_file(folder))
        except ModelError as error:
            hint = error.hint or "Download the file again."
            raise ModelError(f"{folder}: {error.message}", hint=hint) from None
    faults: list[str] = []
    tensors: dict[str, Tensor] = {}
    for name, keys in _read_index(folder / INDEX).items():
        if not os.path.isfile(folder / name):
            faults.append(f"shard {name[:300]} is missing")
            continue
        try:
            shard = read_file(folder / name)
        except ModelError as error:
            faults.append(error.message)
            continue
        faults += [
            f"{key} is in the index, but not in {name}" for key in sorted(keys - shard.keys())
        ]
        faults += [
            f"{key} is in {name}, but not in the index" for key in sorted(shard.keys() - keys)
        ]
        tensors.update(shard)
    if faults:
        raise ModelError(
            f"{folder} is not complete:\n  " + "\n  ".join(faults),
            hint="Download the named files again.",
        )
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name. Raises ModelError."""
    data = map_file(path)
    header, start = _header(path, data)
    header.pop("__metadata__", None)
    return {name: _tensor(path, data, start, name, row) for name, row in header.items()}


def _only_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:10])
        raise ModelError(
            f"there are {len(files)} safetensors files ({names}) and no {INDEX}",
            hint=f"Download {INDEX} too.",
        )
    name = files[0].name
    split_names.check_whole([name], [name], folder, "Download the missing parts too.")
    return files[0]


def _read_index(index: Path) -> dict[str, set[str]]:
    """Shard -> names of the tensors in it."""
    shards: dict[str, set[str]] = {}
    try:
        for key, name in json.loads(read_bytes(index))["weight_map"].items():
            shards.setdefault(str(name), set()).add(key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(f"{index} is no safetensors index", hint="Download it again.") from None
    for name in shards:
        if name != Path(name).name:
            raise ModelError(f"{index} names a file outside its folder: {name[:300]!r}")
    return dict(sorted(shards.items()))


def _header(path: Path, data: Bytes) -> tuple[dict[str, Any], int]:
    """The header's entries and the position of the first data byte."""
    size = int.from_bytes(data[:8].tobytes(), "little")
    start = 8 + size
    if len(data) < 8 or size > MAX_HEADER:
        raise ModelError(f"{path.name} is not a safetensors file (header of {size} bytes)")
    if start > len(data):
        raise ModelError(
            f"{path.name} is truncated: header ends at byte {start}, the file at {len(data)}"
        )
    try:
        header = json.loads(data[8:start].tobytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} has a damaged header: {error}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path.name} has a damaged header: not an object")
    return header, start


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _tensor(path: Path, data: Bytes, start: int, name: str, row: Any) -> Tensor:
    try:
        encoding = _encoding(row["dtype"])
        shape = tuple(row["shape"])
        first, last = row["data_offsets"]
        sane = all(type(number) is int and number >= 0 for number in (*shape, first, last))
    except (KeyError, TypeError, ValueError):
        sane = False
    if not sane:
        raise ModelError(f"{path.name}: the entry of tensor {name!r} is damaged: {str(row)[:200]}")
    if last - first != encoding.nbytes(shape):
        raise ModelError(
            f"{path.name}: tensor {name!r} of {encoding.name} {list(shape)} "
            f"has {last - first} bytes, not {encoding.nbytes(shape)}"
        )
    if start + last > len(data):
        raise ModelError(
            f"{path.name} is truncated: tensor {name!r} ends at byte {start + last}, "
            f"the file at {len(data)}"
        )
    return Tensor(name, shape, encoding, data[start + first : start + last])


def _encoding(dtype: str) -> Encoding:
    """Raises KeyError for a dtype that the format does not have."""
    return BY_NAME[dtype] if dtype in IMPLEMENTED else Encoding(dtype, -1, 1, _BYTES[dtype])
