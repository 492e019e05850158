"""The shipped folder as a plain checkpoint that transformers opens without further packages.

This reads the codes on its own, so that kt can be compared with it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def unpack(source: Path, folder: Path) -> Path:
    """Write `source` into `folder` with its weights in float32. Returns folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    config["torch_dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = weights(load_file(source / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)
    return folder


def weights(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Float32 weights by name, from codes and scales."""
    found = {}
    for name, tensor in stored.items():
        if name.endswith("_packed"):
            base = name.removesuffix("_packed")
            found[base] = _four_bits(tensor, stored[base + "_scale"])
        elif tensor.dtype == torch.int8:
            found[name] = tensor.float() * stored[name + "_scale"].float()
        elif not name.endswith(("_scale", "_shape")):
            found[name] = tensor.float()
    return found


def _four_bits(words: Tensor, scales: Tensor) -> Tensor:
    """words int32 [n, k / 8], the first code lowest and all of them plus 8; scales [n, groups]."""
    codes = (words.to(torch.int64).unsqueeze(-1) >> torch.arange(0, 32, 4)) & 15
    groups = (codes - 8).flatten(1).float().unflatten(1, (scales.shape[1], -1))
    return (groups * scales.float().unsqueeze(-1)).flatten(1)


def model(source: Path, folder: Path) -> Any:
    """transformers' model of the shipped folder; `folder` takes its float32 weights."""
    from transformers import Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM.from_pretrained(unpack(source, folder), dtype=torch.float32).eval()
