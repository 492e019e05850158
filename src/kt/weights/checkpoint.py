"""A checkpoint on disk, whatever its format: a config in Hugging Face's form, tensors by role."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from kt.errors import ModelError
from kt.weights.act_order import is_shuffled, settle_orders
from kt.weights.encodings import IMPLEMENTED
from kt.weights.expert_layout import expert_matrices
from kt.weights.files import check_folder, read_bytes
from kt.weights.formats import modelopt
from kt.weights.formats.assemble import assemble
from kt.weights.gguf_config import hf_config
from kt.weights.gguf_set import GgufSet, find_gguf
from kt.weights.names import Place, ignored, place
from kt.weights.packed_folder import (
    MANIFEST,
    is_packed_folder,
    packed_place,
    read_packed_folder,
)
from kt.weights.safetensors_file import is_safetensors_folder, read_folder
from kt.weights.share import Share
from kt.weights.tensor import Tensor

Kind = Literal["gguf", "safetensors", "packed"]
Parts = dict[tuple[str, int | None], Tensor]


class Checkpoint:
    """An opened checkpoint; its tensors are views of memory maps, so opening reads next to nothing.

    path: the file or folder. folder: where files beside the weights lie. config: as in config.json.
    gguf_metadata: all metadata of the GGUF file that it is, or was converted from, else None.
    tensor_bytes: bytes of all tensors on disk. place_of: what its tensors' names mean. share: marks
    its files as in use while it is open.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        config: dict[str, Any],
        tensors: Iterable[Tensor],
        gguf_metadata: Mapping[str, Any] | None = None,
        place_of: Callable[[str], Place | None] = place,
        share: Share | None = None,
    ) -> None:
        self.path = path
        self.folder = path if path.is_dir() else path.parent
        self.kind: Kind = kind
        self.config = config
        self.gguf_metadata = gguf_metadata
        self.tensor_bytes = 0
        self._roles: dict[str, Tensor] = {}
        self._experts: dict[int, Parts] = {}
        self._place_of = place_of
        self._share = share
        for tensor in tensors:
            self._place(tensor)
        if kind != "packed" and self.gathers:
            settle_orders(self._roles, self._experts)

    @property
    def roles(self) -> frozenset[str]:
        """All roles that have a tensor; experts are not among them."""
        return frozenset(self._roles)

    @property
    def shared(self) -> bool:
        """Whether another process had a converted model's files in use when this one opened
        them."""
        return self._share is not None and self._share.others

    @property
    def expert_layers(self) -> frozenset[int]:
        """Layers that have experts."""
        return frozenset(self._experts)

    @property
    def gathers(self) -> bool:
        """Whether some matrices read their input in another order than it has."""
        return any(map(is_shuffled, self._all()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What of this checkpoint takes more memory than its files suggest, in words."""
        alone = [t for t in self._all() if t.quant and t.quant.order is not None]
        shuffled = sum(tensor.packed_format == "F32" for tensor in alone)
        mixed = [
            f"experts of layer {layer}"
            for layer, parts in sorted(self._experts.items())
            if any(len(formats) > 1 for formats in _formats(parts).values())
        ]
        notes = []
        if shuffled:
            notes.append(
                f"{shuffled} matrices are in act-order, in another order than what reads the same "
                "input: loaded as float32, 4 bytes a weight"
            )
        if mixed:
            notes.append(
                f"{', '.join(mixed[:5])}{' and others' * (len(mixed) > 5)}: in several formats, "
                "loaded as float32, 4 bytes a weight"
            )
        return tuple(notes)

    def has(self, role: str) -> bool:
        """True if there is a tensor for `role`."""
        return role in self._roles

    def tensor(self, role: str) -> Tensor:
        """The tensor of `role`. Raises ModelError if there is none."""
        if role not in self._roles:
            raise ModelError(
                f"{self.path} has no tensor for {role}", hint="Is the checkpoint complete?"
            )
        return self._roles[role]

    def experts(self, layer: int, part: Literal["gate", "up", "down"]) -> list[Tensor]:
        """One matrix per expert: gate and up [I, H], down [H, I]. Raises ModelError."""
        parts = self._experts.get(layer)
        if parts is None:
            raise ModelError(f"{self.path} has no experts for layer {layer}")
        matrices = expert_matrices(
            parts, part, layer=layer, model_type=str(self.config.get("model_type"))
        )
        if len({matrix.packed_format for matrix in matrices}) > 1:
            # One operation computes them all, in one format; float32 holds any of them exactly.
            matrices = [replace(matrix, load_as="F32") for matrix in matrices]
        return matrices

    def close(self) -> None:
        """Drops the tensors; the maps go with the last view of them."""
        self._roles.clear()
        self._experts.clear()
        if self._share:
            self._share.close()

    def _all(self) -> Iterator[Tensor]:
        yield from self._roles.values()
        for parts in self._experts.values():
            yield from parts.values()

    def _place(self, tensor: Tensor) -> None:
        if ignored(tensor.name):
            return
        at = self._place_of(tensor.name)
        if at is None:
            raise ModelError(
                f"{self.path}: kt does not know tensor {tensor.name!r} {list(tensor.shape)}",
                hint="This is a model with parts that kt does not compute.",
            )
        if not tensor.packed_format:
            raise ModelError(
                f"{self.path}: tensor {tensor.name!r} has type {tensor.encoding.name}, "
                f"which is not supported (supported: {', '.join(IMPLEMENTED)})",
                hint="Use a file with another quantization.",
            )
        table: dict[Any, Tensor] = self._roles
        key: Any = at.role
        if not at.role:
            table, key = self._experts.setdefault(at.layer, {}), (at.part, at.index)
        if key in table:
            raise ModelError(
                f"{self.path}: {table[key].name!r} and {tensor.name!r} are the same tensor"
            )
        table[key] = tensor
        self.tensor_bytes += tensor.nbytes


def _formats(parts: Parts) -> dict[str, set[str]]:
    """Part of the experts -> the packed formats of its matrices."""
    formats: dict[str, set[str]] = {}
    for (part, _), tensor in parts.items():
        formats.setdefault(part, set()).add(tensor.packed_format)
    return formats


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a .gguf file (any part of a split), or a folder with one GGUF model, with config.json
    and safetensors, or from `kt convert`.

    Raises ModelError for files that are missing, damaged or not supported, UsageError for a folder
    with a choice.
    """
    if not os.path.exists(path):
        raise ModelError(
            f"{str(path)[:300]} does not exist", hint="Check the path for a typing error."
        )
    if not path.is_dir():
        return _open_file(path)
    check_folder(path)
    if is_packed_folder(path):
        return _open_packed(path)
    gguf = find_gguf(path)
    if not is_safetensors_folder(path):
        if gguf is None:
            raise ModelError(f"{path} holds neither a .gguf file nor .safetensors files")
        return _open_gguf(gguf)
    if gguf is not None:
        raise ModelError(
            f"{path} holds both safetensors and {gguf.name}",
            hint="Name the .gguf file or a .safetensors file.",
        )
    return _open_folder(path)


def _open_file(path: Path) -> Checkpoint:
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        packed = is_packed_folder(path.parent)
        return _open_packed(path.parent) if packed else _open_folder(path.parent)
    return _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    files = GgufSet(path)
    config = hf_config(path, files.metadata, files.tensors)
    return Checkpoint(path, "gguf", config, files.tensors.values(), files.metadata)


def _open_packed(folder: Path) -> Checkpoint:
    packed = read_packed_folder(folder)
    return Checkpoint(
        folder,
        "packed",
        packed.config,
        packed.tensors,
        packed.gguf_metadata,
        packed_place,
        Share(folder / MANIFEST),
    )


def _open_folder(folder: Path) -> Checkpoint:
    config = read_json(folder / "config.json")
    older = folder / "hf_quant_config.json"
    if older.is_file() and not config.get("quantization_config"):
        config["quantization_config"] = modelopt.settings_of(read_json(older))
    tensors = assemble(folder, read_folder(folder), config)
    return Checkpoint(folder, "safetensors", config, tensors)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError."""
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="Download it again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value
