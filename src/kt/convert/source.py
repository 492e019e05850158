"""What a conversion is made from: which model exactly, and the small files that go with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from kt.models.tensors import PARTS
from kt.weights.checkpoint import Checkpoint
from kt.weights.mapped import forget
from kt.weights.packed_folder import GGUF_METADATA
from kt.weights.tensor import Tensor

SAMPLE: Final = 1024
"""Bytes from the middle of each tensor that go into the fingerprint."""

COPIED: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "LICENSE*",
    "NOTICE*",
)
"""Files beside safetensors that running the model, or its licence, needs."""

_SNAPSHOT: Final = re.compile(r"[0-9a-f]{40}")


def describe(checkpoint: Checkpoint, repo: str | None) -> dict[str, Any]:
    """The source as the manifest names it. revision: of the hub repository, if it is from there."""
    parts = checkpoint.path.parts[::-1]
    revision = next((part for part in parts if _SNAPSHOT.fullmatch(part)), None)
    return {
        "name": repo or checkpoint.path.name,
        "kind": checkpoint.kind,
        "revision": revision if repo else None,
        "fingerprint": fingerprint(checkpoint),
    }


def fingerprint(checkpoint: Checkpoint) -> str:
    """A hash of the config and of every tensor's name, shape, type and some of its bytes."""
    digest = hashlib.sha256(json.dumps(checkpoint.config, sort_keys=True, default=str).encode())
    for tensor in tensors_of(checkpoint):
        digest.update(f"{tensor.name} {tensor.shape} {tensor.encoding.name}".encode())
        middle = max(tensor.data.size - SAMPLE, 0) // 2
        digest.update(tensor.data[middle : middle + SAMPLE].tobytes())
        if tensor.quant is not None and tensor.quant.order is not None:
            digest.update(tensor.quant.order.tobytes())
        forget([tensor])  # the kernel maps a good deal around what is touched
    return digest.hexdigest()


def tensors_of(checkpoint: Checkpoint) -> Iterator[Tensor]:
    """All tensors, experts one by one."""
    for role in sorted(checkpoint.roles):
        yield checkpoint.tensor(role)
    for layer in sorted(checkpoint.expert_layers):
        for part in PARTS:
            yield from checkpoint.experts(layer, part)


def small_files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Name in the destination -> content: tokenizer, chat templates, licence."""
    if checkpoint.gguf_metadata is not None:
        text = json.dumps(checkpoint.gguf_metadata, default=_plain, ensure_ascii=True)
        return {GGUF_METADATA: text.encode()}
    folder = checkpoint.folder
    paths = [path for pattern in COPIED for path in sorted(folder.glob(pattern))]
    found = {path.name: path.read_bytes() for path in paths if path.is_file()}
    templates = "additional_chat_templates"
    for path in sorted((folder / templates).glob("*.jinja")):
        found[f"{templates}/{path.name}"] = path.read_bytes()
    return found


def _plain(value: Any) -> Any:
    """numpy's arrays and numbers as JSON has them."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"metadata of type {type(value).__name__}")
