"""A spec with its tensors computes what transformers computes, whatever the config says."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from kt.kernels import reference
from kt.models.families import spec
from kt.models.spec import ExpertSpec, ModelSpec
from kt.weights.checkpoint import Checkpoint, open_checkpoint
from kt.weights.dequantize import dequantize
from tests.tiny import tiny_gguf, tiny_llama, tiny_qwen3_moe, tiny_qwen3_moe_gguf

TOKENS = 70
IDS = torch.randint(0, 320, (TOKENS,), generator=torch.manual_seed(1))
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
CASES = {
    "llama": (tiny_llama, {}),
    "llama, biases, tied": (tiny_llama, {"attention_bias": True, "tie_word_embeddings": True}),
    "llama, head_dim": (tiny_llama, {"head_dim": 16, "num_key_value_heads": 4}),
    "llama, llama3": (tiny_llama, {"rope_parameters": LLAMA3}),
    "llama, yarn": (tiny_llama, {"rope_parameters": YARN}),
    "llama, linear": (tiny_llama, {"rope_parameters": LINEAR, "rms_norm_eps": 1e-2}),
    "qwen": (tiny_qwen3_moe, {}),
    "qwen, weights as they are": (tiny_qwen3_moe, {"norm_topk_prob": False}),
    "qwen, some layers dense": (tiny_qwen3_moe, {"decoder_sparse_step": 2, "attention_bias": True}),
    "qwen, first layer dense": (tiny_qwen3_moe, {"mlp_only_layers": [0], "rope_parameters": YARN}),
    "qwen, window": (tiny_qwen3_moe, {"use_sliding_window": True, "sliding_window": 20}),
    "qwen, float16": (tiny_qwen3_moe, {"dtype": "float16"}),
}


class _Forward:
    """The forward pass that a spec describes, written down once more in torch."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.spec: ModelSpec = spec(checkpoint)

    def logits(self, ids: torch.Tensor) -> np.ndarray:
        x = self._get("embed")[ids]
        for index in range(len(self.spec.layers)):
            x = x + self._attention(index, self._norm(x, f"layers.{index}.attn_norm"))
            x = x + self._mlp(index, self._norm(x, f"layers.{index}.mlp_norm"))
        head = "embed" if self.spec.tied_embeddings else "lm_head"
        return reference.linear(self._norm(x, "final_norm"), self._get(head)).numpy()

    def _get(self, role: str) -> torch.Tensor:
        return torch.from_numpy(dequantize(self._checkpoint.tensor(role)))

    def _maybe(self, role: str) -> torch.Tensor | None:
        return self._get(role) if self._checkpoint.has(role) else None

    def _norm(self, x: torch.Tensor, role: str) -> torch.Tensor:
        return reference.rms_norm(x, self._get(role), self.spec.norm_eps)

    def _linear(self, x: torch.Tensor, role: str) -> torch.Tensor:
        return reference.linear(x, self._get(role), self._maybe(f"{role}.bias"))

    def _attention(self, index: int, x: torch.Tensor) -> torch.Tensor:
        one, at = self.spec.layers[index].attention, f"layers.{index}."
        out = reference.self_attention(
            torch.cat([self._linear(x, at + role) for role in ("q", "k", "v")], dim=1),
            one.n_heads,
            one.n_kv_heads,
            scale=one.scale,
            rope=one.rope,
            window=one.window,
            q_norm=self._get(at + "q_norm") if one.qk_norm else None,
            k_norm=self._get(at + "k_norm") if one.qk_norm else None,
            eps=self.spec.norm_eps,
            kv_format="",
        )
        return self._linear(out, at + "o")

    def _mlp(self, index: int, x: torch.Tensor) -> torch.Tensor:
        one, at = self.spec.layers[index].mlp, f"layers.{index}."
        if not isinstance(one, ExpertSpec):
            return reference.mlp(x, *(self._get(at + part) for part in ("gate", "up", "down")))
        ids, weights = reference.route(self._linear(x, at + "router"), one.router)
        matrices = (
            [torch.from_numpy(dequantize(m)) for m in self._checkpoint.experts(index, part)]
            for part in ("gate", "up", "down")
        )
        return reference.experts(x, ids, weights, *matrices)


def _check(ours: np.ndarray, model: torch.nn.Module) -> None:
    with torch.no_grad():
        theirs = model.eval()(IDS[None]).logits[0].numpy()
    assert theirs.std() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_folder_equal_transformers(case, tmp_path):
    make, config = CASES[case]
    folder = make(tmp_path, **config)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _check(_Forward(open_checkpoint(folder)).logits(IDS), model)


@pytest.mark.parametrize(
    ("make", "family"), [(tiny_gguf, "Llama"), (tiny_qwen3_moe_gguf, "Qwen3Moe")]
)
def test_logits_of_a_gguf_equal_transformers(make, family, tmp_path):
    path: Path = make(tmp_path / "x.gguf", encoding="Q8_0")
    fields = load_gguf_checkpoint(str(path))["config"]
    width = {"moe_intermediate_size": 64}  # which transformers does not read from the file
    config = getattr(transformers, f"{family}Config")(**fields, **width)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing = model.load_state_dict(loaded["tensors"], strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    _check(_Forward(open_checkpoint(path)).logits(IDS), model)
