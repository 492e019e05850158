"""What a GGUF file means, against transformers' own GGUF loader."""

import numpy as np
import pytest
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from kt.models.families import spec
from kt.weights.checkpoint import Checkpoint, open_checkpoint
from kt.weights.dequantize import dequantize
from tests.tiny import tiny_gguf, tiny_qwen3_moe_gguf

MAKERS = {"llama": (tiny_gguf, "Llama"), "qwen3_moe": (tiny_qwen3_moe_gguf, "Qwen3Moe")}


@pytest.fixture(scope="module", params=MAKERS)
def both(request, tmp_path_factory):
    """Our checkpoint, transformers' config and its tensors by name."""
    make, family = MAKERS[request.param]
    path = make(tmp_path_factory.mktemp("gguf") / "x.gguf")
    config = load_gguf_checkpoint(str(path))["config"]
    made = getattr(transformers, f"{family}Config")(**config)
    model = getattr(transformers, f"{family}ForCausalLM")(made)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    return open_checkpoint(path), config, {k: v.numpy() for k, v in loaded["tensors"].items()}


def test_the_config_is_the_same(both):
    ours, theirs, _ = both
    found = {**ours.config, **ours.config["rope_parameters"]}
    assert len(theirs) > 10
    assert {key: found[key] for key in theirs} == theirs


def _halves_first(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of neighbouring pairs (2i, 2i + 1) in the order of transformers, (i, i + dims/2)."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
}


def _role(ours: Checkpoint, layer: int, role: str) -> np.ndarray:
    values = dequantize(ours.tensor(f"layers.{layer}.{role}"))
    attention = spec(ours).layers[layer].attention
    if role in ("q", "k") and attention.rope.interleaved:
        return _halves_first(values, attention.n_heads if role == "q" else attention.n_kv_heads)
    return values


def test_every_tensor_is_the_same(both):
    ours, _, theirs = both
    left = dict(theirs)
    for role, name in (("embed", "embed_tokens"), ("final_norm", "norm")):
        want = left.pop(f"model.{name}.weight")
        np.testing.assert_array_equal(dequantize(ours.tensor(role)), want)
    if ours.has("lm_head"):
        want = left.pop("lm_head.weight")
        np.testing.assert_array_equal(dequantize(ours.tensor("lm_head")), want)
    for role in ours.roles - {"embed", "final_norm", "lm_head"}:
        _, layer, short = role.split(".")
        want = left.pop(f"model.layers.{layer}.{NAMES[short]}")
        np.testing.assert_array_equal(_role(ours, int(layer), short), want)
    for layer in ours.expert_layers:
        parts = {
            part: np.stack([dequantize(matrix) for matrix in ours.experts(layer, part)])
            for part in ("gate", "up", "down")
        }
        names = f"model.layers.{layer}.mlp.experts"
        fused = np.concatenate([parts["gate"], parts["up"]], axis=1)
        np.testing.assert_array_equal(fused, left.pop(f"{names}.gate_up_proj"))
        np.testing.assert_array_equal(parts["down"], left.pop(f"{names}.down_proj"))
    assert not left
