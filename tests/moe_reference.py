"""What transformers computes in float32 with a tiny Qwen3-MoE checkpoint, and how to compare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kt.kernels.library import load
from tests.executors import all_logits, executor, one_sequence

TOKENS = 75

# Where two experts tie for the last place, rounding decides which one runs and the token's result
# is another: float32 itself says nothing there. A token counts as decided if at every layer the
# last chosen expert leads the first one left out by this much of the logits' spread (ten times the
# rounding error).
DECIDED = 0.05


@dataclass(frozen=True)
class Reference:
    """Float32 results: hidden states after each layer [tokens, hidden], logits, decided tokens."""

    ids: list[int]
    hidden: list[np.ndarray]
    logits: np.ndarray
    decided: np.ndarray


def reference_of(folder: Path) -> Reference:
    """TOKENS random tokens through the checkpoint in `folder`."""
    from transformers import Qwen3MoeForCausalLM

    model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=torch.manual_seed(1))
    hidden: list[np.ndarray] = []
    decided = np.ones(TOKENS, bool)
    top_k = model.config.num_experts_per_tok

    def see_router(router: Any, inputs: Any, _output: Any) -> None:
        logits = torch.nn.functional.linear(inputs[0].reshape(TOKENS, -1), router.weight).numpy()
        ordered = -np.sort(-logits, axis=1)
        lead = ordered[:, top_k - 1] - ordered[:, top_k]
        np.logical_and(decided, lead > DECIDED * logits.std(), out=decided)

    for layer in model.model.layers:
        layer.register_forward_hook(lambda _m, _i, out: hidden.append(_first(out)))
        if hasattr(layer.mlp, "gate") and top_k < model.config.num_experts:
            layer.mlp.gate.register_forward_hook(see_router)
    with torch.no_grad():
        logits = model(ids[None]).logits[0].numpy()
    return Reference(ids.tolist(), hidden, logits, decided)


def _first(output: Any) -> np.ndarray:
    return (output[0] if isinstance(output, tuple) else output).reshape(TOKENS, -1).numpy()


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Root mean square of the difference over that of the wanted values."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


def assert_like(reference: Reference, folder: Path, variant: str, limit: float = 2e-2) -> None:
    """Hidden states after every layer and the logits of `folder` are within `limit`, and clear
    choices of the next token are the same.
    """
    ids, decided = reference.ids, reference.decided
    assert decided.mean() > 0.5
    made = executor(folder, variant)
    mlp = load(variant).lib.KT_OP_MLP
    ends = [i + 1 for i, (kind, _) in enumerate(made.operations) if kind == mlp]
    for end, want in zip(ends, reference.hidden, strict=True):
        made.forward(one_sequence(ids), n_ops=end)
        assert relative_error(made.slot("hidden", TOKENS)[decided], want[decided]) < limit
    got, want = all_logits(made, ids)[decided], reference.logits[decided]
    made.close()
    error = relative_error(got, want)
    assert error < limit
    best = np.sort(want, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 6 * error * np.sqrt(np.mean(want**2))
    assert clear.sum() > TOKENS // 4
    np.testing.assert_array_equal(got.argmax(1)[clear], want.argmax(1)[clear])
