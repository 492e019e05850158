"""Embedding, norm, and the padding of rows behind them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm

from kt.kernels import reference
from tests.native.harness import (
    FORMATS,
    Builder,
    assert_same_bits,
    normal,
    pack,
    packed_random,
    relative_error,
    unpack,
)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_rows_of_every_format_are_looked_up_exactly(library, packed_format):
    table = packed_random(library, packed_format, 50, 256)
    builder = Builder(library)
    builder.embed("x", table, scale=0.5)
    assert_same_bits(builder.build(50).forward(50), unpack(library, table) * np.float32(0.5))


@pytest.mark.parametrize("packed_format", ["F32", "F16", "BF16", "I8_G32", "I4_G32", "I4_G32M"])
def test_norm_behind_an_embedding_of_odd_width(library, packed_format):
    """What a format's padding decodes to must not count in the mean."""
    for width in (1, 33, 47, 100):
        table = pack(library, packed_format, normal(width, 20, width))
        builder = Builder(library)
        builder.embed("x", table)
        builder.norm("x", "normed")
        got = builder.build(20).forward(20)
        rows = torch.from_numpy(unpack(library, table)).double()
        want = reference.rms_norm(rows, torch.ones(width), 1e-6)
        assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("width", [1, 31, 32, 64, 100, 576])
@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_norm_with_gain(library, width, eps):
    x, gain = normal(1, 9, width), normal(2, width)
    builder = Builder(library)
    builder.embed("x", x)
    builder.norm("x", "normed", gain, eps)
    got = builder.build(9).forward(9)
    judge = Qwen3MoeRMSNorm(width, eps)
    judge.weight.data = torch.from_numpy(gain)
    assert relative_error(got, judge(torch.from_numpy(x)).detach()) < 1e-6
    want = reference.rms_norm(torch.from_numpy(x).double(), torch.from_numpy(gain), eps)
    assert relative_error(got, want) < 1e-6


def test_a_token_outside_the_table_is_refused(library):
    builder = Builder(library)
    builder.embed("x", normal(1, 9, 32))
    status, _ = builder.build(10).run(10)
    assert status == library.lib.KT_BAD_ARGUMENT
    assert "outside the vocabulary" in library.error()
