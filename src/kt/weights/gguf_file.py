"""One GGUF file: header, metadata and tensor table, read from a memory map.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The whole table is checked
against the file's size here, so that nothing later can read outside the map. Counts and lengths in
the file are never trusted: memory is only taken for bytes that are there.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import numpy as np

from kt.errors import ModelError
from kt.weights.encodings import BY_ID
from kt.weights.files import Bytes, map_file
from kt.weights.tensor import Tensor

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_DIMENSIONS: Final = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# GGUF's value types that have a fixed size; 7 is a bool, 8 a string, 9 an array.
_SCALARS: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING: Final = 8
_ARRAY: Final = 9


class GgufFile:
    """An opened file. metadata: key -> int, float, bool, str, list of str, or numpy array; tensors:
    by name.
    """

    def __init__(self, path: Path) -> None:
        """Opens and checks `path`. Raises ModelError."""
        self.path = path
        data = map_file(path)
        try:
            reader = _Reader(data)
            n_tensors, n_values = _header(reader)
            self.metadata = _metadata(reader, n_values)
            self.tensors = _tensors(reader, n_tensors, _alignment(self.metadata))
        except _BadFile as error:
            raise ModelError(f"{path}: {error}", hint=error.hint) from None


class _BadFile(Exception):
    """What is wrong with the file, before its path is known."""

    def __init__(self, message: str, hint: str = "The file is damaged: download it again.") -> None:
        super().__init__(message)
        self.hint = hint


class _Reader:
    """A position in the map; every read is checked against the end of the file."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.buffer: memoryview = data.data
        self.at = 0

    def take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes."""
        end = self.at + count
        if end > len(self.buffer):
            raise _truncated(what, self.at, len(self.buffer))
        part = self.buffer[self.at : end]
        self.at = end
        return part

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def string(self, what: str) -> str:
        try:
            return str(self.take(self.u64(what), what), "utf-8")
        except UnicodeDecodeError:
            raise _BadFile(f"{what} is not UTF-8") from None

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings. One tight loop: vocabularies hold hundreds of thousands."""
        buffer, at, unpack = self.buffer, self.at, _U64.unpack_from
        result = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(buffer, at)[0]
                result.append(str(buffer[start:at], "utf-8"))
        except struct.error:
            raise _truncated(what, self.at, len(buffer)) from None
        except (UnicodeDecodeError, OverflowError):
            raise _BadFile(f"{what}: entry {len(result)} is not a UTF-8 string") from None
        if at > len(buffer):
            raise _truncated(what, self.at, len(buffer))
        self.at = at
        return result


def _truncated(what: str, at: int, size: int) -> _BadFile:
    return _BadFile(f"truncated: {what} at byte {at} goes past the end of the file ({size} bytes)")


def _header(reader: _Reader) -> tuple[int, int]:
    """Numbers of tensors and metadata values."""
    magic = bytes(reader.take(4, "the header"))
    if magic != MAGIC:
        raise _BadFile(
            f"not a GGUF file (it starts with {magic!r}, not {MAGIC!r})", "Name a .gguf file."
        )
    version = reader.u32("the header")
    if version not in VERSIONS:
        if version & 0xFFFF == 0 and version:
            raise _BadFile(
                "big-endian GGUF is not supported", "Use the little-endian file of the same model."
            )
        raise _BadFile(
            f"GGUF version {version} is not supported (2 and 3 are)", "Convert the model again."
        )
    return reader.u64("the header"), reader.u64("the header")


def _metadata(reader: _Reader, count: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for index in range(count):
        key = reader.string(f"metadata key {index} of {count}")
        if key in result:
            raise _BadFile(f"metadata key {key!r} occurs twice")
        result[key] = _value(reader, reader.u32(f"metadata {key!r}"), f"metadata {key!r}")
    return result


def _value(reader: _Reader, kind: int, what: str) -> Any:
    if kind == _STRING:
        return reader.string(what)
    if kind == _ARRAY:
        return _array(reader, what)
    return _scalars(reader, kind, 1, what)[0].item()


def _array(reader: _Reader, what: str) -> Any:
    kind, count = reader.u32(what), reader.u64(what)
    return reader.strings(count, what) if kind == _STRING else _scalars(reader, kind, count, what)


def _scalars(reader: _Reader, kind: int, count: int, what: str) -> Any:
    if kind not in _SCALARS:
        raise _BadFile(f"{what} has unknown value type {kind}")
    dtype = _SCALARS[kind]
    part = reader.take(count * dtype.itemsize, what)
    if kind == 7:  # any byte but 0 is true; numpy's bool must hold 0 or 1
        return np.frombuffer(part, np.uint8) != 0
    return np.frombuffer(part, dtype).copy()  # a view would keep the whole map alive


def _alignment(metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or value < 1 or value & (value - 1):
        raise _BadFile(f"general.alignment = {value!r} is not a power of two")
    return value


def _tensors(reader: _Reader, count: int, alignment: int) -> dict[str, Tensor]:
    table: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        name = reader.string(f"the name of tensor {index} of {count}")
        if name in table:
            raise _BadFile(f"tensor {name!r} occurs twice")
        table[name] = _tensor_row(reader, f"tensor {name!r}")
    start = -(-reader.at // alignment) * alignment
    return {name: _tensor(reader.data, name, start, alignment, *row) for name, row in table.items()}


def _tensor_row(reader: _Reader, what: str) -> tuple[tuple[int, ...], int, int]:
    """(shape outermost first, type number, offset)."""
    n_dimensions = reader.u32(what)
    if n_dimensions > MAX_DIMENSIONS:
        raise _BadFile(f"{what} has {n_dimensions} dimensions (at most {MAX_DIMENSIONS})")
    shape = tuple(reader.u64(what) for _ in range(n_dimensions))[::-1]
    return shape, reader.u32(what), reader.u64(what)


def _tensor(
    data: Bytes,
    name: str,
    start: int,
    alignment: int,
    shape: tuple[int, ...],
    kind: int,
    offset: int,
) -> Tensor:
    encoding = BY_ID.get(kind)
    if encoding is None:
        raise _BadFile(
            f"tensor {name!r} has type number {kind}, which kt does not know",
            "Use a file with another quantization.",
        )
    if 0 in shape:
        raise _BadFile(f"tensor {name!r} has shape {list(shape)}")
    try:
        size = encoding.nbytes(shape)
    except ValueError as error:
        raise _BadFile(f"tensor {name!r} ({encoding.name}): {error}") from None
    if offset % alignment:
        raise _BadFile(f"tensor {name!r}: offset {offset} is not a multiple of {alignment}")
    first = start + offset
    if first + size > len(data):
        raise _BadFile(
            f"truncated: tensor {name!r} ends at byte {first + size}, the file at {len(data)}"
        )
    return Tensor(name, shape, encoding, data[first : first + size])
