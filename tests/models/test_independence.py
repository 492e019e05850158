"""A token's logits are bitwise the same whatever the batch, the chunking and the threads."""

from __future__ import annotations

import numpy as np
import pytest

from kt.engine.batch import Batch
from tests.executors import NATIVE, PAGE, RUNNABLE, SMOLLM2, all_logits, executor, i32, one_sequence
from tests.tiny import tiny_gguf, tiny_qwen3_moe, tiny_qwen3_moe_gguf

LENGTH = 300  # beyond one split of 256 keys
VOCAB = 320

# (checkpoint, variants): the software tiles are slow, so they run the tiny models only.
MODELS = [("qwen3_moe", RUNNABLE), ("qwen3moe_q4_k", RUNNABLE), ("llama_q6_k", RUNNABLE)]
CASES = [(model, variant) for model, variants in MODELS for variant in variants]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("independence")
    tiny_qwen3_moe(folder / "qwen3_moe", seed=5)
    tiny_qwen3_moe_gguf(folder / "qwen3moe_q4_k", encoding="Q4_K")
    tiny_gguf(folder / "llama_q6_k", encoding="Q6_K")
    return folder


def prompt(seed: int, length: int, vocab: int = VOCAB) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


@pytest.mark.parametrize(("model", "variant"), CASES)
def test_tiny_models(folder, model, variant):
    check(folder / model, variant, chunks=(1, 7, 64, 512), vocab=VOCAB)


@pytest.mark.parametrize("variant", RUNNABLE)
def test_a_prompts_first_steps_want_no_logits(folder, variant):
    """As when a prompt takes more than one step and nobody else is answered."""
    ids = prompt(3, 70)
    made = executor(folder / "qwen3_moe", variant, pages=8)
    alone = all_logits(made, ids)[-1:].copy()
    for first in (0, 32):
        assert made.forward(one_sequence(ids[first : first + 32], first=first)).shape == (0, VOCAB)
    rest = made.forward(one_sequence(ids[64:], first=64, logits=[5]))
    np.testing.assert_array_equal(rest, alone)
    made.close()


@pytest.mark.parametrize("variant", RUNNABLE)
def test_int8_keys_and_values(folder, variant):
    check(folder / "qwen3_moe", variant, chunks=(1, 64), vocab=VOCAB, kv_format="int8")


@pytest.mark.model
@pytest.mark.parametrize("variant", NATIVE)
def test_smollm2(variant):
    check(SMOLLM2, variant, chunks=(7, 64, 512), vocab=49152, length=70)


def check(path, variant, *, chunks, vocab, length=LENGTH, kv_format="bf16"):
    ids = prompt(0, length, vocab)
    made = executor(path, variant, threads=2, pages=128, kv_format=kv_format)
    alone = all_logits(made, ids)
    assert np.isfinite(alone).all()
    assert np.ptp(alone, axis=0).max() > 0
    for chunk in chunks:
        np.testing.assert_array_equal(all_logits(made, ids, chunk=chunk), alone)
    np.testing.assert_array_equal(beside_seven_others(made, ids, vocab), alone[-3:])
    made.close()
    single = executor(path, variant, threads=1, kv_format=kv_format)
    np.testing.assert_array_equal(all_logits(single, ids), alone)
    single.close()


def beside_seven_others(made, ids, vocab) -> np.ndarray:
    """The last 3 tokens of `ids`, each decoded in a batch with 7 sequences of other lengths."""
    split = len(ids) - 3
    pages_each = -(-len(ids) // PAGE)
    assert pages_each * 8 <= made.n_pages
    others = [prompt(seed, 3 + 5 * seed, vocab) for seed in range(1, 8)]
    all_logits(made, ids[:split], page=0)
    rows = []
    for step in range(3):
        sequences = [([ids[split + step]], split + step)]
        for other in others:  # each prefills a few tokens more beside the decode
            sequences.append((other[step * 2 : step * 2 + 2], step * 2))
        rows.append(_mixed(made, sequences, pages_each))
    return np.stack(rows)


def _mixed(made, sequences, pages_each) -> np.ndarray:
    """Logits of the first sequence's last token, placed in the middle of the batch."""
    order = [*range(1, 4), 0, *range(4, len(sequences))]
    tokens, start, first, table, row = [], [0], [], [], 0
    for index in order:
        ids, position = sequences[index]
        tokens += ids
        start.append(len(tokens))
        first.append(position)
        table.append(list(range(index * pages_each, (index + 1) * pages_each)))
        row = len(tokens) - 1 if index == 0 else row
    return made.forward(Batch(i32(tokens), i32(start), i32(first), i32(table), i32([row])))[
        0
    ].copy()


def test_workers_that_come_late_change_nothing(tmp_path):
    """Sixteen workers on few cores: at any time most of them are behind the others."""
    path = tiny_qwen3_moe(tmp_path / "deep", seed=6, num_hidden_layers=24, num_experts=16)
    single, crowd = executor(path, NATIVE[0], threads=1), executor(path, NATIVE[0], threads=16)
    for seed in range(1000):
        ids = prompt(seed, 1 + seed % 40)
        np.testing.assert_array_equal(all_logits(crowd, ids), all_logits(single, ids))
    single.close()
    crowd.close()
