"""A tensor as it lies in a file."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kt.errors import ModelError
from kt.weights.encodings import COLUMN_WORDS, Encoding
from kt.weights.files import Bytes, check_length
from kt.weights.quant import I32, Quant

__all__ = ["Bytes", "Tensor"]


@dataclass(frozen=True, eq=False)
class Tensor:
    """name: as in the file. shape: outermost first; a matrix is [n_out, n_in].

    data: flat, read-only view of the memory map. quant: the scales that belong to data, if they lie
    apart from it. load_as: another packed format than that of the encoding. columns: of a matrix
    or stack that is packed already, int32 [..., k]: the column of the input that column i reads.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: Bytes
    quant: Quant | None = None
    load_as: str = ""
    columns: I32 | None = None

    @property
    def packed_format(self) -> str:
        """The native format (kt.h's name without KT_) it is loaded as; "" if there is none."""
        own = self.quant.packed_format if self.quant else self.encoding.packed_format
        return self.load_as or own

    @property
    def nbytes(self) -> int:
        """Bytes in the file, scales included."""
        return self.data.size + (self.quant.nbytes if self.quant else 0)

    def rows(self, first: int, last: int) -> Tensor:
        """The part first <= i < last of the rows of a matrix, without copying. Raises ModelError
        if rows do not lie together.
        """
        quant = self.quant
        if quant is not None:
            try:
                quant = quant.rows(first, last)
            except ValueError as error:
                raise ModelError(f"{self.name} cannot be split: {error}") from None
        return self._part(self.name, first, last, (last - first, *self.shape[1:]), quant)

    def matrix(self, index: int) -> Tensor:
        """Entry `index` of the outermost axis of a stack, without that axis."""
        quant = self.quant.matrix(index) if self.quant else None
        name = f"{self.name}[{index}]"
        part = self._part(name, index, index + 1, self.shape[1:], quant)
        return part if self.columns is None else replace(part, columns=self.columns[index])

    def _part(
        self, name: str, first: int, last: int, shape: tuple[int, ...], quant: Quant | None
    ) -> Tensor:
        if self.encoding.id in COLUMN_WORDS:
            raise ModelError(
                f"{self.name}: fused tensors in {self.encoding.name} are not supported"
            )
        row = self.data.size // self.shape[0]
        data = self.data[first * row : last * row]
        return Tensor(name, shape, self.encoding, data, quant, self.load_as)

    def check_length(self) -> None:
        """Raises ModelError if a file that holds the tensor has become shorter."""
        check_length(self.data, self.name)
        if self.quant is not None:
            check_length(self.quant.scales, self.name)
