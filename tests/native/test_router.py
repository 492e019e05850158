"""The router: choice and weights against formulas in float64 and against transformers.

Experts here are made to show the router's decision: expert e adds its weight to column e.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from kt.kernels import reference
from kt.kernels.library import Library, load
from kt.models.spec import RouterSpec
from tests.native.harness import Builder, assert_same_bits, normal, pack

SPECS = {
    "softmax": RouterSpec(16, 4),
    "not normalised": RouterSpec(16, 4, normalise=False, scale=2.5),
    "softmax after": RouterSpec(16, 4, softmax_after=True, normalise=False),
    "sigmoid": RouterSpec(16, 4, score="sigmoid", scale=2.5),
    "sqrt softplus": RouterSpec(16, 4, score="sqrt_softplus", scale=1.5),
    "bias": RouterSpec(16, 4, score="sigmoid", selection_bias=True),
    "groups top2": RouterSpec(
        16, 4, score="sigmoid", selection_bias=True, n_groups=4, top_groups=2, group_score="top2"
    ),
    "groups max": RouterSpec(16, 4, normalise=False, n_groups=8, top_groups=3, scale=16.0),
    "all groups": RouterSpec(16, 6, score="sigmoid", n_groups=2, top_groups=2, group_score="top2"),
    "one": RouterSpec(16, 1),
    "one, not normalised": RouterSpec(16, 1, normalise=False),
    "eight of odd count": RouterSpec(37, 8),
    "every expert": RouterSpec(5, 5),
    "one expert": RouterSpec(1, 1),
    "many": RouterSpec(256, 8, score="sigmoid", n_groups=8, top_groups=4, group_score="top2"),
}


def routed(
    library: Library, logits: np.ndarray, spec: RouterSpec, bias: np.ndarray | None = None
) -> np.ndarray:
    """Router logits [T, E] -> weights [T, E], zero for experts that were not chosen."""
    tokens, experts = logits.shape
    ones = np.ones((tokens, 1), np.float32)
    builder = Builder(library)
    builder.embed("logits", logits)
    builder.embed("x", ones)
    builder.embed("out", np.zeros((tokens, experts), np.float32))
    # silu(g) * 1 = 1 within 1e-7: silu(x) = 1 at this x.
    gate = pack(library, "F32", np.full((experts, 1, 1), 1.2784645, np.float32))
    up = pack(library, "F32", np.ones((experts, 1, 1), np.float32))
    down = pack(library, "F32", np.eye(experts, dtype=np.float32)[:, :, None])
    builder.route("logits", spec, bias)
    builder.mlp("x", "out", [gate, up, down], spec)
    return builder.build(tokens).forward(tokens)


def formula(logits: np.ndarray, spec: RouterSpec, bias: np.ndarray | None) -> np.ndarray:
    """The same in float64, one token at a time, in plain Python."""
    out = np.zeros(logits.shape)
    for row, x in zip(out, logits.astype(np.float64), strict=True):
        if spec.score == "sigmoid":
            score = 1 / (1 + np.exp(-x))
        elif spec.score == "sqrt_softplus":
            score = np.sqrt(np.log1p(np.exp(x)))
        else:
            score = x if spec.softmax_after else np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        choice = (score + (0 if bias is None else bias)).tolist()
        size = spec.n_experts // spec.n_groups
        groups = [sorted(choice[g * size : (g + 1) * size])[::-1] for g in range(spec.n_groups)]
        worth = [sum(g[:2]) if spec.group_score == "top2" else g[0] for g in groups]
        kept = sorted(range(spec.n_groups), key=lambda g: -worth[g])[: spec.top_groups]
        open_to = [e for e in range(spec.n_experts) if e // size in kept]
        ids = sorted(open_to, key=lambda e: -choice[e])[: spec.top_k]
        weights = score[ids]
        if spec.softmax_after:
            weights = np.exp(weights - weights.max()) / np.exp(weights - weights.max()).sum()
        if spec.normalise:
            weights = weights / weights.sum()
        row[ids] = weights * spec.scale
    return out


@pytest.mark.parametrize("name", SPECS)
def test_choice_and_weights(library, name):
    spec = SPECS[name]
    logits = normal(11, 40, spec.n_experts, scale=2)
    bias = normal(12, spec.n_experts, scale=0.3) if spec.selection_bias else None
    got = routed(library, logits, spec, bias)
    want = formula(logits, spec, bias)
    assert ((got != 0) == (want != 0)).all()
    assert ((want != 0).sum(1) == spec.top_k).all()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-9)
    assert_same_bits(got, routed(load("avx2"), logits, spec, bias))


@pytest.mark.parametrize("name", SPECS)
def test_the_reference_says_the_same_as_the_formula(name):
    spec = SPECS[name]
    logits = normal(13, 40, spec.n_experts, scale=2)
    bias = normal(14, spec.n_experts, scale=0.3) if spec.selection_bias else None
    wide = None if bias is None else torch.from_numpy(bias).double()
    ids, weights = reference.route(torch.from_numpy(logits).double(), spec, wide)
    got = torch.zeros(logits.shape, dtype=torch.float64).scatter(1, ids, weights)
    np.testing.assert_allclose(got.numpy(), formula(logits, spec, bias), rtol=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_ties_go_to_the_lowest_index(library, name):
    """Equal logits everywhere, and equal in pairs."""
    spec = replace(SPECS[name], selection_bias=False)
    pairs = (np.arange(spec.n_experts) // 2) * (4 / spec.n_experts)
    logits = np.stack([0 * pairs, pairs, -pairs]).astype(np.float32)
    got = routed(library, logits, spec) != 0
    assert got[0].nonzero()[0].tolist() == list(range(spec.top_k))
    assert (got == (formula(logits, spec, None) != 0)).all()


def test_the_bias_decides_but_does_not_weigh(library):
    """Acceptance: selection by biased scores, weights from the unbiased ones, then the scale."""
    spec = RouterSpec(4, 2, score="sigmoid", selection_bias=True, scale=2.0)
    logits = np.array([[0.0, 1.0, 2.0, -3.0]], np.float32)
    bias = np.array([0.0, 0.0, -1.0, 2.0], np.float32)
    got = routed(library, logits, spec, bias)[0]
    one, three = 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(3))
    want = [0, 2 * one / (one + three), 0, 2 * three / (one + three)]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_scores_that_all_vanish_give_no_nan(library):
    """As in DeepSeek's own code, whose sum has 1e-20 added."""
    got = routed(library, np.full((1, 8), -200, np.float32), RouterSpec(8, 2, score="sigmoid"))
    assert not got.any()


@pytest.mark.parametrize("normalise", [False, True])
def test_against_transformers_qwen3_moe(library, normalise):
    config = Qwen3MoeConfig(
        hidden_size=24, num_experts=24, num_experts_per_tok=4, norm_topk_prob=normalise
    )
    judge = Qwen3MoeTopKRouter(config)
    judge.weight.data = torch.eye(24)
    logits = normal(15, 30, 24)
    _, weights, ids = judge(torch.from_numpy(logits))
    want = torch.zeros(30, 24).scatter(1, ids, weights).detach().numpy()
    got = routed(library, logits, RouterSpec(24, 4, normalise=normalise))
    np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("normalise", [False, True])
def test_against_transformers_deepseek_v3(library, groups, kept, normalise):
    config = DeepseekV3Config(
        hidden_size=32,
        n_routed_experts=32,
        num_experts_per_tok=6,
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=normalise,
        routed_scaling_factor=2.5,
    )
    judge = DeepseekV3TopkRouter(config)
    bias = normal(16, 32, scale=0.2)
    judge.weight.data, judge.e_score_correction_bias = torch.eye(32), torch.from_numpy(bias)
    logits = normal(17, 30, 32)
    _, weights, ids = judge(torch.from_numpy(logits))
    want = torch.zeros(30, 32).scatter(1, ids, weights).detach().numpy()
    spec = RouterSpec(
        32,
        6,
        score="sigmoid",
        selection_bias=True,
        normalise=normalise,
        scale=2.5,
        n_groups=groups,
        top_groups=kept,
        group_score="top2",
    )
    np.testing.assert_allclose(routed(library, logits, spec, bias), want, rtol=2e-6)
