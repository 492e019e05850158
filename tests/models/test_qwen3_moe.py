"""qwen3_moe in bfloat16 against transformers in float32 on the same weights, layer by layer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.executors import RUNNABLE
from tests.moe_reference import assert_like, reference_of
from tests.tiny import tiny_qwen3_moe

CONFIGS = {
    "default": {},
    "not_normalised": {"norm_topk_prob": False, "num_experts_per_tok": 3},
    "some_dense": {"mlp_only_layers": [1], "intermediate_size": 80},
    "odd_sizes": {"moe_intermediate_size": 40, "num_experts": 5, "hidden_size": 72, "head_dim": 48},
}


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tiny_qwen3_moe(folder, seed=3, **CONFIGS[request.param])
    return folder, reference_of(folder)


@pytest.mark.parametrize("variant", RUNNABLE)
def test_every_layer_and_the_logits_are_transformers(checkpoint, variant):
    folder, reference = checkpoint
    assert_like(reference, folder, variant)


def test_the_configurations_differ():
    assert all(a != b for a, b in pairwise(CONFIGS.values()))
