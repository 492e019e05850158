"""From a checkpoint to the folder that ships: a compressed-tensors checkpoint of qwen3_moe with
INT4 experts and INT8 attention, in one safetensors file.

    python -m tools.tiny.export build/tiny src/kt/tiny
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from tools.tiny.model import GROUP, Model, Shape, int4_codes

MAX_BYTES: Final = 9_000_000
END_ID: Final = 2
GENERATION: Final = {"do_sample": True, "temperature": 0.3, "top_k": 20, "eos_token_id": END_ID}


def config(shape: Shape) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **asdict(shape),
        "intermediate_size": shape.moe_intermediate_size,
        "hidden_act": "silu",
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "quantization_config": _quantization(),
    }


def _quantization() -> dict[str, Any]:
    experts = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    rest = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            "experts": {
                "targets": [r"re:.*mlp\.experts\..*"],
                "weights": {**experts, "group_size": GROUP},
                "format": "pack-quantized",
            },
            "attention": {
                "targets": [r"re:.*self_attn\..*_proj"],
                "weights": rest,
                "format": "int-quantized",
            },
        },
        "ignore": [r"re:.*mlp\.gate$", "lm_head"],
    }


def tensors(model: Model) -> dict[str, Tensor]:
    """What model.safetensors holds, by name."""
    found = {
        "model.embed_tokens.weight": model.embed.bfloat16(),
        "model.norm.weight": model.norm.weight,
    }
    for index, layer in enumerate(model.layers):
        name = f"model.layers.{index}."
        found[name + "input_layernorm.weight"] = layer.input_norm.weight
        found[name + "post_attention_layernorm.weight"] = layer.post_norm.weight
        found |= _attention(name + "self_attn.", model.shape, layer.attention)
        found |= _experts(name + "mlp.", layer.experts)
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def _attention(name: str, shape: Shape, attention: Any) -> dict[str, Tensor]:
    query = shape.num_attention_heads * shape.head_dim
    other = shape.num_key_value_heads * shape.head_dim
    q, k, v = attention.qkv.split((query, other, other))
    found = {
        name + "q_norm.weight": attention.q_norm.weight,
        name + "k_norm.weight": attention.k_norm.weight,
    }
    for part, weight in (("q", q), ("k", k), ("v", v), ("o", attention.o)):
        scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
        codes = (weight / scale.float()).round().clamp(-127, 127)
        found[f"{name}{part}_proj.weight"] = codes.to(torch.int8)
        found[f"{name}{part}_proj.weight_scale"] = scale
    return found


def _experts(name: str, experts: Any) -> dict[str, Tensor]:
    found = {name + "gate.weight": experts.router}
    parts = (("gate", experts.gate_up[:, 0]), ("up", experts.gate_up[:, 1]), ("down", experts.down))
    for part, stack in parts:
        codes, scales = int4_codes(stack.detach())
        for index in range(stack.shape[0]):
            base = f"{name}experts.{index}.{part}_proj.weight"
            found[base + "_packed"] = packed(codes[index])
            found[base + "_scale"] = scales[index].bfloat16()
            found[base + "_shape"] = torch.tensor(codes[index].shape)
    return found


def packed(codes: Tensor) -> Tensor:
    """Codes -8..7 [n, k] as int32 [n, k / 8]: eight to a word, offset by 8, the first lowest."""
    nibbles = (codes.to(torch.int64) + 8).unflatten(1, (-1, 8))
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words < 1 << 31, words, words - (1 << 32)).to(torch.int32)


def export(source: Path, folder: Path) -> None:
    """Write weights, settings and tokenizer; licence and card are not made here."""
    model = Model(Shape())
    state = torch.load(source / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    save_file(tensors(model), file, metadata={"format": "pt"})
    file.chmod(0o644)
    if file.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{file} has {file.stat().st_size} bytes, more than {MAX_BYTES}")
    _write(folder / "config.json", config(model.shape))
    _write(folder / "generation_config.json", GENERATION)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="where the training wrote its checkpoint")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    export(arguments.source, arguments.folder)


if __name__ == "__main__":
    main()
