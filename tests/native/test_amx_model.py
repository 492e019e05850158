"""The software model of AMX tiles: its arithmetic, and how often the kernels use it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt.kernels import reference
from kt.kernels.library import Library, load
from tests.native.harness import Builder, Packed, normal, pack, packed_random, relative_error
from tests.native.test_linear import product

SMALLEST = np.float32(2.0**-126)  # normal float32


@pytest.fixture(scope="module")
def model() -> Library:
    return load("amx_model")


def counts(library: Library) -> tuple[int, int]:
    both = library.ffi.new("int64_t[2]")
    library.lib.kt_tile_counts(both, both + 1)
    return both[0], both[1]


def counted(library: Library, weight: Packed, tokens: int) -> tuple[int, int]:
    """Tile multiplies and loads of one product."""
    program = product(library, [weight], normal(1, 70, weight.k))
    before = counts(library)
    program.forward(tokens)
    return tuple(b - a for a, b in zip(before, counts(library), strict=True))


@pytest.mark.parametrize("packed_format", ["I8_G32", "I4_G32M", "I4_K32M", "I5_G32"])
def test_integer_tiles_are_two_by_two(model, packed_format):
    """64 tokens x 64 outputs x 256 K: 4 x 4 tiles of sums, 8 blocks of K. Two panels and two token
    tiles are loaded for four products.
    """
    multiplies, loads = counted(model, packed_random(model, packed_format, 64, 256), 64)
    assert multiplies == 4 * 4 * 8
    assert loads == multiplies


def test_groups_of_16_take_tiles_of_half_the_depth(model):
    multiplies, loads = counted(model, packed_random(model, "I6_K16", 64, 256), 64)
    assert multiplies == 4 * 4 * 16
    assert loads == multiplies


def test_bf16_tiles_are_two_by_two(model):
    """Sums are loaded too, once for all K: four per 2 x 2."""
    multiplies, loads = counted(model, packed_random(model, "BF16", 64, 256), 64)
    assert multiplies == 4 * 4 * 8
    assert loads == multiplies + 4 * 4


def test_a_short_batch_loads_one_token_tile(model):
    """16 tokens: 3 loads for 2 products."""
    multiplies, loads = counted(model, packed_random(model, "I8_G32", 64, 256), 16)
    assert multiplies == 4 * 8
    assert loads == 3 * 2 * 8


def test_few_tokens_of_integers_go_through_vectors(model):
    for tokens in (1, 2, 3, 4):
        assert counted(model, packed_random(model, "I8_G32", 64, 256), tokens) == (0, 0)
    assert counted(model, packed_random(model, "BF16", 64, 256), 1)[0] == 4 * 8


def test_other_variants_count_nothing():
    library = load("avx2")
    assert counted(library, packed_random(library, "I8_G32", 64, 256), 64) == (0, 0)


def tdpbf16ps(sums: np.ndarray, tokens: np.ndarray, panel: np.ndarray, blocks: int) -> np.ndarray:
    """One TDPBF16PS for every 32 K, after the instruction set manual: sums [T, N], tokens [T, K],
    panel [N, K], all of bfloat16 values.

    Products of even K and of odd K are summed apart, each fused; then both are added, then that to
    the sum. Every input and every result below the normal range counts as zero.
    """
    tokens, panel = flushed(tokens), flushed(panel)
    for block in range(blocks):
        parts = [np.zeros_like(sums), np.zeros_like(sums)]
        for k in range(block * 32, block * 32 + 32):
            # A product of two bfloat16 has 16 bits, and 64 hold the fused sum before it is rounded.
            exact = tokens[:, None, k].astype(np.longdouble) * panel[None, :, k]
            parts[k % 2] = flushed((parts[k % 2] + exact).astype(np.float32))
        sums = flushed(flushed(sums) + flushed(parts[0] + parts[1]))
    return sums


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < SMALLEST, np.float32(0), x)


@pytest.mark.parametrize("size", [1.0, 1e-15, 1e-19, 3e-20])
@pytest.mark.parametrize("tokens", [1, 16, 40])
def test_bf16_arithmetic_is_the_manuals(model, size, tokens):
    """The sizes of weights and activations put products and sums into the normal range, around its
    lower edge, and below.
    """
    k, n = 128, 40
    weight = pack(model, "BF16", normal(1, n, k, scale=size), k=k)
    builder = Builder(model)
    builder.embed("x", normal(2, tokens, k))
    builder.norm("x", "normed", normal(3, k, scale=size))
    builder.linear("normed", "y", [weight])
    program = builder.build(tokens)
    got = program.forward(tokens)
    rows = reference.round_bf16(torch.from_numpy(program.values("normed", tokens))).numpy()
    panel = reference.round_weights(torch.from_numpy(normal(1, n, k, scale=size)), "BF16").numpy()
    want = tdpbf16ps(np.zeros((tokens, n), np.float32), rows, panel, k // 32)
    np.testing.assert_array_equal(got, want)
    if size == 1e-19:
        assert (want == 0).any()
        assert (want != 0).any()
    if size == 1.0:
        exact = rows.astype(np.float64) @ panel.T.astype(np.float64)
        assert relative_error(got, exact) < 1e-6


def test_odd_and_even_products_are_summed_apart(model):
    """2^24 + 1 is lost in one float32 sum; in two sums the small products survive together."""
    k = 32
    x, w = np.ones((1, k), np.float32), np.zeros((1, k), np.float32)
    w[0, 0], w[0, 1::2] = 2.0**24, 1.0  # even: 2^24; odd: 16 ones
    builder = Builder(model)
    builder.embed("x", x)
    builder.norm("x", "normed", eps=0.0)
    builder.linear("normed", "y", [pack(model, "BF16", w)])
    assert builder.build(1).forward(1)[0, 0] == 2.0**24 + 16
