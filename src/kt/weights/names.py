"""What checkpoints call their tensors -> the roles that kt knows them by.

Roles: embed, final_norm, lm_head, rope_factors, and for layer i "layers.{i}." followed by
attn_norm, q, k, v, o (each with .bias), q_norm, k_norm, mlp_norm, gate, up, down, router. Parts of
experts are listed apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_HF_TOP: Final = {
    "embed_tokens.weight": "embed",
    "norm.weight": "final_norm",
    "lm_head.weight": "lm_head",
}
_HF_LAYER: Final = {
    "input_layernorm.weight": "attn_norm",
    "self_attn.q_proj.weight": "q",
    "self_attn.k_proj.weight": "k",
    "self_attn.v_proj.weight": "v",
    "self_attn.o_proj.weight": "o",
    "self_attn.q_proj.bias": "q.bias",
    "self_attn.k_proj.bias": "k.bias",
    "self_attn.v_proj.bias": "v.bias",
    "self_attn.o_proj.bias": "o.bias",
    "self_attn.q_norm.weight": "q_norm",
    "self_attn.k_norm.weight": "k_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.down_proj.weight": "down",
    "mlp.gate.weight": "router",
    "block_sparse_moe.gate.weight": "router",
}
_GGUF_TOP: Final = {
    "token_embd.weight": "embed",
    "output_norm.weight": "final_norm",
    "output.weight": "lm_head",
    "rope_freqs.weight": "rope_factors",
}
_GGUF_LAYER: Final = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_output.weight": "o",
    "attn_q.bias": "q.bias",
    "attn_k.bias": "k.bias",
    "attn_v.bias": "v.bias",
    "attn_output.bias": "o.bias",
    "attn_q_norm.weight": "q_norm",
    "attn_k_norm.weight": "k_norm",
    "ffn_norm.weight": "mlp_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
    "ffn_gate_inp.weight": "router",
}
_PARTS: Final = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "gate_up_proj": "gate_up",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
    "gate": "gate",
    "up": "up",
    "down": "down",
    "gate_up": "gate_up",
}

_LAYER: Final = re.compile(r"(?:layers|blk)\.(0|[1-9]\d{0,5})\.(.+)")
_EXPERT: Final = re.compile(
    r"(?:mlp|block_sparse_moe)\.experts\.(?:(?P<index>0|[1-9]\d{0,5})\.)?"
    r"(?P<part>gate_proj|up_proj|down_proj|gate_up_proj|w1|w2|w3)(?:\.weight)?"
    r"|ffn_(?P<gguf_part>gate|up|down|gate_up)(?:_exps|\.(?P<gguf_index>\d{1,6}))\.weight"
)
# Written by old conversions; kt computes the frequencies from the config.
_IGNORED: Final = re.compile(r"(?:.*\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True)
class Place:
    """Where a tensor belongs. role: "" if it is part of the experts of `layer`.

    index: which expert, None for a stack of all. part: gate, up, down or gate_up.
    """

    role: str
    layer: int = -1
    part: str = ""
    index: int | None = None


def place(name: str) -> Place | None:
    """The place of the tensor called `name`; None if kt does not know such a tensor."""
    short = name.removeprefix("model.")
    top = _HF_TOP.get(short) or _GGUF_TOP.get(name)
    if top:
        return Place(top)
    match = _LAYER.fullmatch(short)
    if not match:
        return None
    layer, rest = int(match[1]), match[2]
    role = _HF_LAYER.get(rest) or _GGUF_LAYER.get(rest)
    if role:
        return Place(f"layers.{layer}.{role}", layer)
    return _expert_place(layer, rest)


def ignored(name: str) -> bool:
    """True for tensors that carry nothing the config does not say."""
    return _IGNORED.fullmatch(name) is not None


def _expert_place(layer: int, rest: str) -> Place | None:
    match = _EXPERT.fullmatch(rest)
    if not match:
        return None
    index = match["index"] or match["gguf_index"]
    part = _PARTS[match["part"] or match["gguf_part"]]
    return Place("", layer, part, int(index) if index is not None else None)
