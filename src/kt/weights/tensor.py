"""A tensor as it lies in a file."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kt.errors import ModelError
from kt.weights.encodings import Encoding

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Tensor:
    """name: as in the file. shape: outermost first; a matrix is [n_out, n_in].

    data: flat, read-only view of the memory map, encoding.nbytes(shape) bytes.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: Bytes

    def rows(self, first: int, last: int) -> Tensor:
        """The part first <= i < last of the outermost axis, without copying."""
        row = self.encoding.nbytes(self.shape[1:])
        data = self.data[first * row : last * row]
        return Tensor(self.name, (last - first, *self.shape[1:]), self.encoding, data)

    def matrix(self, index: int) -> Tensor:
        """Entry `index` of the outermost axis of a stack, without that axis."""
        part = self.rows(index, index + 1)
        return Tensor(f"{self.name}[{index}]", self.shape[1:], self.encoding, part.data)


def map_file(path: Path) -> Bytes:
    """The bytes of `path` as a read-only map; nothing is read yet. Raises ModelError."""
    try:
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError:
        raise ModelError(
            f"{path} does not exist", hint="Check the path for a typing error."
        ) from None
    except ValueError:  # an empty file cannot be mapped
        raise ModelError(f"{path} is empty", hint="Download it again.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
