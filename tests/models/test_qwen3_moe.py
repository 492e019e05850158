"""qwen3_moe in bfloat16 against transformers in float32 on the same weights, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from kt.kernels.library import load
from tests.executors import RUNNABLE, all_logits, executor, one_sequence
from tests.tiny import tiny_qwen3_moe

TOKENS = 75
CONFIGS = {
    "default": {},
    "not_normalised": {"norm_topk_prob": False, "num_experts_per_tok": 3},
    "some_dense": {"mlp_only_layers": [1], "intermediate_size": 80},
    "odd_sizes": {"moe_intermediate_size": 40, "num_experts": 5, "hidden_size": 72, "head_dim": 48},
}


# Where two experts tie for the last place, rounding decides which one runs and the token's result
# is another: float32 itself says nothing there. A token counts as decided if at every layer the
# last chosen expert leads the first one left out by this much of the logits' spread (ten times the
# rounding error).
DECIDED = 0.05


@dataclass(frozen=True)
class Reference:
    """Float32 results: hidden states after each layer [tokens, hidden], logits, decided tokens."""

    folder: Path
    ids: list[int]
    hidden: list[np.ndarray]
    logits: np.ndarray
    decided: np.ndarray


@pytest.fixture(scope="module", params=CONFIGS)
def reference(request, tmp_path_factory):
    from transformers import Qwen3MoeForCausalLM

    folder = tmp_path_factory.mktemp(request.param)
    tiny_qwen3_moe(folder, seed=3, **CONFIGS[request.param])
    model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=torch.manual_seed(1))
    hidden, decided = [], np.ones(TOKENS, bool)
    top_k = model.config.num_experts_per_tok

    def see_router(router, inputs, _output):
        logits = torch.nn.functional.linear(inputs[0].reshape(TOKENS, -1), router.weight).numpy()
        ordered = -np.sort(-logits, axis=1)
        lead = ordered[:, top_k - 1] - ordered[:, top_k]
        np.logical_and(decided, lead > DECIDED * logits.std(), out=decided)

    for layer in model.model.layers:
        layer.register_forward_hook(lambda _m, _i, out: hidden.append(_first(out)))
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(see_router)
    with torch.no_grad():
        logits = model(ids[None]).logits[0].numpy()
    if request.param == "default":  # this checkpoint has no such ties: every token counts
        decided[:] = True
    return Reference(folder, ids.tolist(), hidden, logits, decided)


def _first(output):
    return (output[0] if isinstance(output, tuple) else output).reshape(TOKENS, -1).numpy()


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Root mean square of the difference over that of the wanted values."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


@pytest.mark.parametrize("variant", RUNNABLE)
def test_every_layer_and_the_logits_are_transformers(reference, variant):
    ids, decided = reference.ids, reference.decided
    assert decided.mean() > 0.5
    made = executor(reference.folder, variant)
    mlp = load(variant).lib.KT_OP_MLP
    ends = [i + 1 for i, (kind, _) in enumerate(made.operations) if kind == mlp]
    for end, want in zip(ends, reference.hidden, strict=True):
        made.forward(one_sequence(ids), n_ops=end)
        assert relative_error(made.slot("hidden", TOKENS)[decided], want[decided]) < 2e-2
    got, want = all_logits(made, ids)[decided], reference.logits[decided]
    made.close()
    error = relative_error(got, want)
    assert error < 2e-2
    best = np.sort(want, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 4 * error * np.sqrt(np.mean(want**2))
    assert clear.sum() > TOKENS // 4
    np.testing.assert_array_equal(got.argmax(1)[clear], want.argmax(1)[clear])


def test_the_configurations_differ():
    assert all(a != b for a, b in pairwise(CONFIGS.values()))
