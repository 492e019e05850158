"""Zeros, extremes and values that are not numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt.kernels import reference
from tests.native.harness import (
    FORMATS,
    GGUF_FORMATS,
    Builder,
    Seq,
    block_elements,
    normal,
    pack,
    packed_random,
    relative_error,
    unpacked,
)
from tests.native.test_linear import limit, product
from tests.tiny import random_blocks

K = 256


@pytest.mark.parametrize("packed_format", FORMATS)
def test_rows_of_zeros_give_zeros(library, packed_format):
    x = normal(1, 8, K)
    x[::2] = 0
    weight = packed_random(library, packed_format, 33, K)
    got = product(library, [weight], x).forward(8)
    assert not got[::2].any()
    assert got[1::2].all()


@pytest.mark.parametrize("packed_format", FORMATS)
def test_weights_with_zero_scales(library, packed_format):
    kind = GGUF_FORMATS.get(packed_format)
    if kind:
        raw = np.zeros_like(random_blocks(kind, 20, K))
        weight = pack(library, packed_format, raw, source=kind, k=K)
    else:
        weight = pack(library, packed_format, np.zeros((20, K), np.float32))
    assert not product(library, [weight], normal(1, 20, K)).forward(20).any()


# Bytes of a GGUF block that hold codes, and what makes all of these as large as they can be.
LARGEST = {
    "I6_K16": (slice(0, 192), 0xFF),
    "I5_G32": (slice(2, 22), 0xFF),
    "I5_G32M": (slice(4, 24), 0xFF),
    "I5_K32M": (slice(16, 176), 0xFF),
    "I4_G32": (slice(2, 18), 0xFF),
    "I4_G32M": (slice(4, 20), 0xFF),
    "I4_K32M": (slice(16, 144), 0xFF),
    "F4_MX": (slice(1, 17), 0x77),
    "I3_K16": (slice(0, 96), 0xFF),
    "I2_K16M": (slice(16, 80), 0xFF),
}


@pytest.mark.parametrize("packed_format", LARGEST)
def test_the_largest_codes_and_activations(library, packed_format):
    """All codes at their top and all activations at 127 or -127: sums of narrow integers, where a
    variant has them, must hold that. Nothing is rounded here but the float32 sums.
    """
    kind = GGUF_FORMATS[packed_format]
    codes, byte = LARGEST[packed_format]
    raw = random_blocks(kind, 33, K)
    raw.reshape(33, K // block_elements(kind), -1)[:, :, codes] = byte
    weight = pack(library, packed_format, raw, source=kind, k=K)
    x = np.ones((8, K), np.float32)
    x[1::2] = -1
    got = product(library, [weight], x).forward(8)
    normed = reference.rms_norm(torch.from_numpy(x).double(), torch.ones(K), 1e-6)
    want = reference.linear(normed, unpacked(library, weight)[0])
    assert relative_error(got, want) < 2e-6


@pytest.mark.parametrize("packed_format", FORMATS)
def test_a_row_of_one_outlier(library, packed_format):
    """A block's other values vanish beside it, and only that block's."""
    x = normal(1, 6, K)
    x[:, 40] = 1000
    weight = packed_random(library, packed_format, 33, K)
    got = product(library, [weight], x).forward(6)
    normed = reference.rms_norm(torch.from_numpy(x).double(), torch.ones(K), 1e-6)
    want = reference.linear(normed, unpacked(library, weight)[0])
    assert relative_error(got, want) < limit(packed_format, library.name)


@pytest.mark.parametrize("packed_format", FORMATS)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e15])
def test_small_and_large_inputs(library, packed_format, size):
    """eps decides below 1e-3; the squares of 1e15 still fit float32."""
    x = normal(1, 6, K) * np.float32(size)
    weight = packed_random(library, packed_format, 33, K)
    program = product(library, [weight], x)
    got = program.forward(6)
    normed = reference.rms_norm(torch.from_numpy(x).double(), torch.ones(K), 1e-6)
    np.testing.assert_allclose(program.values("normed", 6), normed.numpy(), rtol=2e-5, atol=1e-42)
    assert np.isfinite(got).all()
    if size > 1e-38:  # there the products are subnormal
        want = reference.linear(normed, unpacked(library, weight)[0])
        assert relative_error(got, want) < limit(packed_format, library.name)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_what_is_not_finite_is_reported(library, packed_format):
    """Wherever it stands in a block: row i of the input holds one such value in one column."""
    bad = [(np.nan, 0), (np.nan, 17), (np.nan, 31), (np.inf, 0), (-np.inf, 17), (np.inf, 255)]
    x = normal(1, 2 + len(bad), K)
    for row, (value, column) in enumerate(bad, start=2):
        x[row, column] = value
    weight = packed_random(library, packed_format, 33, K)
    program = product(library, [weight], x)
    for row in range(2, len(x)):
        status, _ = program.run([Seq([0, row, 1])])
        assert status == library.lib.KT_NOT_FINITE
        assert library.error() == "logits of row 1 are not finite"
    status, logits = program.run(2)
    assert status == library.lib.KT_OK
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("packed_format", FORMATS)
def test_a_hidden_value_of_an_mlp_that_is_not_finite_is_reported(library, packed_format):
    """One row of the gate matrix is broken: one hidden value, the rest of its block is sound."""
    gate = normal(1, 48, 32)
    gate[5, 3] = np.nan
    builder = Builder(library)
    builder.embed("x", normal(2, 4, 32))
    builder.embed("out", normal(3, 4, 64))
    k = 48 if packed_format in ("F32", "F16", "BF16") else 256
    gate = np.concatenate([gate] * (k // 48 + 1))[:k]
    floats = [pack(library, "F32", matrix) for matrix in (gate, normal(4, k, 32))]
    builder.mlp("x", "out", [*floats, packed_random(library, packed_format, 64, k)])
    status, _ = builder.build(4).run(4)
    assert status == library.lib.KT_NOT_FINITE


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_passes_through_attention(library, where, value):
    column = {"q": 5, "k": 64 + 5, "v": 128 + 5}[where]
    qkv = normal(1, 40, 192)
    qkv[30, column] = value
    builder = Builder(library, layers=1, pages=2, n_kv_heads=1, head_dim=64)
    builder.embed("qkv", qkv)
    builder.attention("qkv", "out", 1, scale=0.125)
    program = builder.build(40)
    status, _ = program.run([Seq(range(40), pages=[0, 1])])
    assert status == library.lib.KT_NOT_FINITE
    assert not np.isfinite(program.values("out", 40)[30]).all()
