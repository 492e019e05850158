"""Which files of a repository a model needs: configuration, tokenizer, and one set of weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from kt import split_names
from kt.errors import ModelError, UsageError
from kt.units import format_bytes

INDEX = "model.safetensors.index.json"

_SMALL = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt", "*.tiktoken")
_NOT_MODELS = ("mmproj", "imatrix")


def wants_gguf(sizes: Mapping[str, int], files: str) -> bool:
    """Whether the user asked for a GGUF file, or the repository (file -> bytes) has nothing
    else."""
    has_safetensors = any(name.endswith(".safetensors") for name in sizes)
    return bool(files) or (not has_safetensors and any(name.endswith(".gguf") for name in sizes))


def gguf_files(sizes: Mapping[str, int], files: str, repo: str) -> list[str]:
    """The one GGUF set (all its parts, in order) that `files` names: a file name, a quantisation,
    or "".

    Raises UsageError with the choices and their sizes if there is none or more than one, ModelError
    if parts are missing.
    """
    sets: dict[str, list[str]] = {}
    for name in sorted(sizes):
        if name.endswith(".gguf") and not any(word in name.lower() for word in _NOT_MODELS):
            stem = split_names.stem(name)
            sets.setdefault(f"{stem}.gguf" if stem else name, []).append(name)
    chosen = [key for key, parts in sets.items() if files in (key, *parts)]
    if not chosen:
        chosen = [key for key in sets if not files or _has_word(key, files)]
    if len(chosen) == 1:
        return _whole(sets[chosen[0]], repo)
    if not sets:
        raise ModelError(f"{repo} has no GGUF file")
    listing = [
        f"  {key}  {format_bytes(sum(sizes[part] for part in sets[key]))}" for key in chosen or sets
    ]
    problem = f"{repo} has {len(sets)} GGUF models; say which one"
    if files:
        problem = f"{repo}: {files!r} names {len(chosen) or 'none'} of its {len(sets)} GGUF models"
    raise UsageError(
        problem, hint="\n".join([f"Name one as {repo}:QUANTISATION or {repo}/FILE.gguf:", *listing])
    )


def small_files(sizes: Mapping[str, int]) -> list[str]:
    """Configuration and tokenizer at the top of a safetensors repository."""
    return [
        name for name in sorted(sizes) if any(fnmatch(name, p) for p in _SMALL) and "/" not in name
    ]


def safetensors_files(sizes: Mapping[str, int], folder: Path, repo: str) -> list[str]:
    """The weights: what the index in `folder` names if the repository has one, else its only
    safetensors file."""
    if INDEX not in sizes:
        names = [
            name for name in sorted(sizes) if name.endswith(".safetensors") and "/" not in name
        ]
        if "model.safetensors" in names:
            return ["model.safetensors"]
        if not names:
            raise ModelError(
                f"{repo} has no safetensors and no GGUF weights",
                hint="kt reads only these; pickled weights can run code and are never loaded.",
            )
        if len(_whole(names, repo)) > 1:
            raise ModelError(
                f"{repo} has {len(names)} safetensors files and no {INDEX}",
                hint="Nothing was downloaded. Choose another repository of this model.",
            )
        return names
    try:
        weight_map = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        named = sorted({str(name) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{repo}: {INDEX} cannot be read: {error!r}") from error
    missing = [name for name in named if name not in sizes]
    if missing:
        raise ModelError(f"{repo} lacks files that its index names: {', '.join(missing)}")
    return named


def _whole(names: list[str], repo: str) -> list[str]:
    """`names`, if they are all parts of what they are parts of. Raises ModelError."""
    split_names.check_whole(
        names, names, repo, "Nothing was downloaded. Choose another repository of this model."
    )
    return names


def _has_word(name: str, word: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(word.lower())}([-._/]|$)", name.lower()) is not None
