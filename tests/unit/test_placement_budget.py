"""Bytes of packed weights, KV pages and working memory, against hand-computed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from kt.errors import ModelError
from kt.models import families
from kt.placement import budget
from kt.weights.checkpoint import open_checkpoint
from tests.tiny import tiny_gguf, tiny_qwen3_moe


@pytest.mark.parametrize(
    ("packed", "n", "k", "expected"),
    [
        ("F32", 16, 32, 16 * 32 * 4),
        ("BF16", 16, 64, 16 * 64 * 2),
        ("F16", 17, 33, 2 * 32 * 64),  # two panels, 33 columns padded to 64
        ("I8_G32", 16, 32, 16 * 32 + 16 * 2),  # one float16 scale per row and 32 columns
        ("I5_G32M", 16, 64, 10 * 64 + 2 * 16 * 4),  # 5 bits a code, and two float16
        ("I5_G32", 32, 64, 2 * (10 * 64 + 2 * 16 * 2)),
        ("I4_G32", 17, 100, 2 * (8 * 128 + 4 * 32)),
        ("I4_G32", 16, 32, 320),  # 288 bytes, rounded up to 64
        ("I4_G32M", 16, 32, 8 * 32 + 64),
        ("I6_K16", 16, 256, 12 * 256 + 16 * 16 + 16 * 2 + 32),  # rounded up to 64
        ("I5_K32M", 16, 512, 10 * 512 + 2 * 320),
        ("I4_K32M", 16, 256, 8 * 256 + 320),
    ],
)
def test_packed_bytes(packed: str, n: int, k: int, expected: int) -> None:
    assert budget.packed_bytes(packed, n, k) == -(-expected // 64) * 64


def test_what_cannot_be_packed_is_an_error() -> None:
    with pytest.raises(ModelError, match="I4_K32M needs rows of whole groups of 256, not 96"):
        budget.packed_bytes("I4_K32M", 16, 96)
    with pytest.raises(ModelError, match="no packed format"):
        budget.packed_bytes("Q4_0", 16, 32)


def test_parts_of_a_moe(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_qwen3_moe(tmp_path))
    spec = families.spec(checkpoint)
    # hidden 64, 3 layers, 4 heads and 2 KV heads of 32, 8 experts of 48, vocabulary 320, all
    # bfloat16
    assert budget.weight_bytes(spec, checkpoint) == {
        "embedding": 320 * 64 * 2,
        "attention": 3 * (128 * 64 + 2 * 64 * 64 + 64 * 128) * 2,
        "router": 3 * 16 * 64 * 4,  # float32; 8 rows take a whole panel of 16
        "experts": 3 * 8 * (2 * 48 * 64 + 64 * 64) * 2,  # down: 48 columns padded to 64
        "norms": 4 * (3 * (2 * 64 + 2 * 32) + 64),
        "head": 320 * 64 * 2,
    }
    # 2 KV heads, keys and values of 32 dims, bfloat16, 32 positions, 3 layers
    assert budget.page_bytes(spec, "bf16") == 3 * 2 * 2 * 32 * 32 * 2
    # int8: a float16 a key, rounded up to 64 bytes for 16 of them, and a float32 a value
    assert budget.page_bytes(spec, "int8") == 3 * 2 * (2 * (16 * 32 + 64) + 32 * (32 + 4))
    assert budget.position_bytes(spec.layers[0].attention, "bf16") == 2 * 2 * 32 * 2


def test_parts_of_a_dense_gguf(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "t.gguf", encoding="Q4_0", head_dim=32))
    parts = budget.weight_bytes(families.spec(checkpoint), checkpoint)
    assert parts["attention"] == 3 * (128 + 64 + 64) * 64 * 18 // 32 + 3 * 64 * 128 * 18 // 32
    assert parts["mlp"] == 3 * 3 * 128 * 64 * 18 // 32
    assert "experts" not in parts and "head" not in parts


def test_working_memory_counts_rows_and_logits(tmp_path: Path) -> None:
    spec = families.spec(open_checkpoint(tiny_gguf(tmp_path / "t.gguf")))

    def working(**changes: int) -> int:
        sizes = {"max_batch_tokens": 100, "max_logits": 1, "threads": 1}
        return budget.working_bytes(spec, **{**sizes, **changes})

    # Logits in the step program and in Python, and the rows that they are computed from.
    per_sequence = (working(max_logits=3) - working()) / 2
    assert per_sequence == 2 * 4 * spec.vocab + 15 * spec.hidden
    per_row = (working(max_batch_tokens=200) - working()) / 100
    assert per_row >= 4 * 2 * spec.hidden
    assert working(threads=2) > working()


def test_pages() -> None:
    assert [budget.pages_for(n) for n in (1, 32, 33, 64)] == [1, 1, 2, 2]
