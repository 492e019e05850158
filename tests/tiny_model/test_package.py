"""The model that ships inside kt: what its files promise."""

from __future__ import annotations

import json
from math import prod

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from kt import catalog
from kt.models.families import spec
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE, ROOT, all_logits, executor
from tests.tiny_model.questions import TINY
from tools.tiny import evaluate, unpacked
from tools.tiny.text.corpus import DOMAINS

LAYERS, EXPERTS, HIDDEN, WIDTH, VOCABULARY, TOP_K = 6, 16, 256, 128, 2048, 2


def test_it_is_one_small_file_with_all_that_belongs_to_it() -> None:
    names = {path.name for path in TINY.iterdir()}
    assert names == {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "LICENSE",
        "README.md",
    }
    assert (TINY / "model.safetensors").stat().st_size <= 9_000_000
    assert (TINY / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_catalogue_tells_its_sizes() -> None:
    entry = catalog.resolve("tiny")
    assert (entry.path, entry.packaged, entry.family) == (TINY, True, "qwen3_moe")
    attention = HIDDEN * HIDDEN * 2 + HIDDEN * HIDDEN // 2 * 2  # q, o; k, v of half the heads
    expert, router = 3 * HIDDEN * WIDTH, EXPERTS * HIDDEN
    rest = VOCABULARY * HIDDEN + LAYERS * (attention + router)
    total, active = rest + LAYERS * EXPERTS * expert, rest + LAYERS * TOP_K * expert
    assert entry.params_total == pytest.approx(total / 1e9, rel=0.01)
    assert entry.params_active == pytest.approx(active / 1e9, rel=0.02)
    assert 8e6 < total < 12e6
    size = (TINY / "model.safetensors").stat().st_size
    assert entry.size_bytes == pytest.approx(size, rel=0.02)
    # A scale of 16 bits for 32 codes of 4.
    assert entry.experts_bytes == pytest.approx(LAYERS * EXPERTS * expert * 4.5 / 8, rel=0.01)


def test_its_shape_is_that_of_a_mixture_of_experts() -> None:
    made = spec(open_checkpoint(TINY))
    assert (made.family, len(made.layers), made.vocab) == ("qwen3_moe", LAYERS, VOCABULARY)
    assert made.tied_embeddings
    config = json.loads((TINY / "config.json").read_text())
    assert (config["num_experts"], config["num_experts_per_tok"]) == (EXPERTS, TOP_K)
    with safe_open(TINY / "model.safetensors", "numpy") as file:
        codes = [name for name in file.keys() if name.endswith("_packed")]
        assert len(codes) == LAYERS * EXPERTS * 3
        assert sum(prod(file.get_slice(name).get_shape()) * 8 for name in codes) == (
            LAYERS * EXPERTS * 3 * HIDDEN * WIDTH
        )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[int], torch.Tensor]]:
    """Documents of each domain, and log probabilities [tokens, vocab] of transformers in float32 on
    weights that were unpacked without kt.
    """
    model = unpacked.model(TINY, tmp_path_factory.mktemp("tiny"))
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    texts = [next(evaluate.held_out(tokenizer, domain, 1))[0] for domain in DOMAINS]
    with torch.no_grad():
        return [
            (ids, torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1))
            for ids in texts
        ]


@pytest.mark.parametrize("variant", NATIVE)
def test_next_token_distribution_is_transformers(reference, variant: str) -> None:
    made = executor(TINY, variant)
    divergence = []
    for ids, want in reference:
        got = torch.log_softmax(torch.from_numpy(all_logits(made, ids)).double(), -1)
        divergence.append((want.exp() * (want - got)).sum(-1))
    made.close()
    assert 0 < torch.cat(divergence).mean() < 0.01


def test_experts_are_used_unevenly_and_each_domain_has_its_own(tmp_path) -> None:
    model = unpacked.model(TINY, tmp_path)
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    uses = [evaluate.use(model, tokenizer, domain, 1000) for domain in ("stories", "sums")]
    for use in uses:
        assert use.hot_share().mean() > 0.5
    assert uses[0].in_common(uses[1]) < 3


def test_the_card_says_what_it_is_and_is_not() -> None:
    card = (TINY / "README.md").read_text()
    for word in ("license: apache-2.0", "perplexity", "knows little", "generated", "experts"):
        assert word in card
    assert "measured by tools/tiny/evaluate.py" in card
