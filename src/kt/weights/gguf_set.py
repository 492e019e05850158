"""The files of one GGUF model: one file, or all parts of a split, found from any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kt import split_names
from kt.errors import ModelError, UsageError
from kt.weights.gguf_file import GgufFile
from kt.weights.tensor import Tensor


class GgufSet:
    """All parts of a model. metadata: the first part's; tensors: of all parts, by name."""

    def __init__(self, path: Path) -> None:
        """Opens the set that the file `path` belongs to. Raises ModelError."""
        opened = GgufFile(path)
        paths = _part_paths(path, opened)
        files = [opened if part == path else GgufFile(part) for part in paths]
        self.metadata: dict[str, Any] = files[0].metadata
        self.tensors: dict[str, Tensor] = {}
        for number, file in enumerate(files):
            _check_part(file, number, len(files))
            for name, tensor in file.tensors.items():
                if name in self.tensors:
                    raise ModelError(f"{file.path}: tensor {name!r} is in an earlier part too")
                self.tensors[name] = tensor
        announced = self.metadata.get("split.tensors.count")
        if len(files) > 1 and announced is not None and announced != len(self.tensors):
            raise ModelError(
                f"{path}: the parts hold {len(self.tensors)} tensors, "
                f"split.tensors.count says {announced}",
                hint="Parts of different conversions are mixed: download the set again.",
            )


def find_gguf(folder: Path) -> Path | None:
    """The one GGUF model in `folder` (for a split: its first part present); None if there is none.

    Raises UsageError if there are several: which quantization to run is the user's choice.
    """
    models: dict[str, Path] = {}
    for path in sorted(folder.glob("*.gguf")):
        if path.name.startswith("mmproj"):  # an image encoder that goes with a model
            continue
        models.setdefault(split_names.stem(path.name) or path.stem, path)
    if len(models) > 1:
        names = ", ".join(path.name for path in models.values())
        raise UsageError(
            f"{folder} holds {len(models)} GGUF models: {names}", hint="Name one of these files."
        )
    return next(iter(models.values()), None)


def _part_paths(path: Path, opened: GgufFile) -> list[Path]:
    names = split_names.parts(path.name)
    count = _whole(opened, "split.count", 1)
    if split_names.stem(path.name) is None:
        if count not in (0, 1):
            raise ModelError(
                f"{path} is one of {count} parts, but its name does not end in "
                f"-00001-of-{count:05d}.gguf or the like",
                hint="Give the parts their original names.",
            )
        return [path]
    present = [name for name in names if (path.parent / name).is_file()]
    hint = "Download the missing parts into the same folder."
    split_names.check_whole([path.name], present, path.parent, hint)
    return [path.parent / name for name in names]


def _check_part(file: GgufFile, number: int, count: int) -> None:
    says = (_whole(file, "split.no", 0), _whole(file, "split.count", 1) or 1)
    if says != (number, count):
        raise ModelError(
            f"{file.path} should be part {number + 1} of {count}, "
            f"but says it is part {says[0] + 1} of {says[1]}",
            hint="Give the parts their original names, or download the set again.",
        )


def _whole(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int:
        raise ModelError(f"{file.path}: {key} = {str(value)[:80]} is not a whole number")
    return value
