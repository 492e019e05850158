"""The software model of AMX tiles: its arithmetic, and how often the kernels use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kt.kernels import reference
from kt.kernels.library import Library, load
from tests.native.harness import (
    GGUF_FORMATS,
    Builder,
    normal,
    pack,
    packed_random,
    relative_error,
)
from tests.native.test_linear import product

GROUPS_OF_16 = ("I6_K16", "I3_K16", "I2_K16M", "I3_IQ2", "I3_IQ1M")
TILED = ("BF16", "F8_G128", *GGUF_FORMATS)
K = 256
SMALLEST = np.float32(2.0**-126)  # normal float32


@pytest.fixture(scope="module")
def model() -> Library:
    return load("amx_model")


@dataclass(frozen=True)
class Counts:
    """Tile operations, in the order of kt_tile_count."""

    multiplies: int
    loads: int
    stores: int
    zeros: int
    late_loads: int
    early_stores: int


def counts(library: Library) -> np.ndarray:
    numbers = np.zeros(library.lib.KT_TILE_COUNTS, np.int64)
    library.lib.kt_tile_counts(library.ffi.cast("int64_t *", numbers.ctypes.data))
    return numbers


def counted(library: Library, packed_format: str, tokens: int, n: int = 64, k: int = K) -> Counts:
    """Of one product."""
    weight = packed_random(library, packed_format, n, k)
    program = product(library, [weight], normal(1, 70, weight.k))
    before = counts(library)
    program.forward(tokens)
    return Counts(*(counts(library) - before).tolist())


def sums(packed_format: str) -> int:
    """How many sums of integers or bfloat16 a row of K has, each with a scale of its own."""
    spans = {"BF16": K, "F8_G128": 128}
    return K // spans.get(packed_format, depth(packed_format))


def depth(packed_format: str) -> int:
    """K of a multiply."""
    return 16 if packed_format in GROUPS_OF_16 else 32


@pytest.mark.parametrize("packed_format", TILED)
def test_tall_tiles_multiply_as_often_as_they_load(model, packed_format):
    """64 tokens x 64 outputs are four calls of 2 x 2 tiles. Two panels and two token tiles are
    loaded for four products, each an operation ahead; a sum is stored when the other two are under
    way. Only a call's first multiply and last store find nothing to do meanwhile.
    """
    got, calls = counted(model, packed_format, 64), 4
    assert got.multiplies == calls * 4 * K // depth(packed_format)
    assert got.loads == got.multiplies
    assert got.stores == got.zeros == calls * 4 * sums(packed_format)
    assert got.late_loads == got.early_stores == calls


@pytest.mark.parametrize("packed_format", TILED)
@pytest.mark.parametrize("tokens", [5, 16])
def test_a_short_batch_loads_one_token_tile(model, packed_format, tokens):
    """Up to 16 tokens x 64 outputs are two calls: 3 loads for 2 products, as far ahead."""
    got, calls = counted(model, packed_format, tokens), 2
    assert got.multiplies == calls * 2 * K // depth(packed_format)
    assert got.loads * 2 == got.multiplies * 3
    assert got.stores == got.zeros == calls * 2 * sums(packed_format)
    assert got.late_loads == got.early_stores == calls


@pytest.mark.parametrize("packed_format", ["BF16", "I8_G32", "I6_K16"])
def test_a_single_block_is_loaded_once(model, packed_format):
    """Nothing is loaded past the end."""
    k = 256 if packed_format == "I6_K16" else 32
    for tokens, tiles in ((16, 1), (32, 2)):
        got = counted(model, packed_format, tokens, n=32, k=k)
        assert got.loads == (2 + tiles) * k // depth(packed_format)


def test_few_tokens_of_integers_go_through_vectors(model):
    for tokens in (1, 2, 3, 4):
        assert counted(model, "I8_G32", tokens).multiplies == 0
    assert counted(model, "BF16", 1).multiplies == 2 * 2 * K // 32


def test_other_variants_count_nothing():
    assert counted(load("avx2"), "I8_G32", 64) == Counts(0, 0, 0, 0, 0, 0)


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
