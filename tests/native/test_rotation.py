"""Rotary embedding: the reference against transformers, the kernels against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from kt.kernels import reference
from kt.models.spec import RopeSpec
from tests.native.harness import Builder, Program, Seq, normal, relative_error


def rope(dims: int, *, interleaved: bool = False, factor: float = 1.0) -> RopeSpec:
    exponents = np.arange(0, dims, 2) / dims
    return RopeSpec(dims, tuple((10000.0**-exponents).tolist()), interleaved, factor)


def transformers_tables(spec: RopeSpec, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    angles = positions[:, None].float() * torch.tensor(spec.inv_freq)
    wide = torch.cat((angles, angles), -1)[None]
    return wide.cos() * spec.attention_factor, wide.sin() * spec.attention_factor


@pytest.mark.parametrize("dims", [2, 32, 64])
def test_reference_half_split_against_transformers(dims):
    spec, positions = rope(dims, factor=1.2), torch.tensor([0, 1, 5, 1000])
    x = torch.from_numpy(normal(1, 4, 3, 64))
    cosine, sine = transformers_tables(spec, positions)
    turned, _ = apply_rotary_pos_emb(
        x[None, ..., :dims], x[None, ..., :dims], cosine, sine, unsqueeze_dim=2
    )
    got = reference.rotate(x, spec, positions)
    assert torch.equal(got[..., dims:], x[..., dims:])
    assert relative_error(got[..., :dims], turned[0]) < 1e-6


def test_reference_interleaved_against_transformers():
    """DeepSeek's function turns pairs (2i, 2i + 1) and leaves them half-split."""
    spec, positions = rope(32, interleaved=True), torch.tensor([0, 1, 5, 1000])
    x = torch.from_numpy(normal(2, 4, 3, 32))
    cosine, sine = transformers_tables(spec, positions)
    turned, _ = apply_rotary_pos_emb_interleave(x[None], x[None], cosine, sine, unsqueeze_dim=2)
    got = reference.rotate(x, spec, positions)
    assert relative_error(torch.cat((got[..., 0::2], got[..., 1::2]), -1), turned[0]) < 1e-6


def stored_keys(program: Program, pages: list[int], head_dim: int) -> torch.Tensor:
    """The keys of the first layer and head in these pages, bfloat16 [32 * pages, head_dim]: two
    panels of 16 keys per page, whose lines hold two dims of each (native/kernels/kv_pages.h)."""
    size = 2 * 32 * head_dim * 2  # a page's keys and values
    panels = [
        program.kv[page * size : page * size + size // 2]
        .view(np.int16)
        .reshape(2, head_dim // 2, 16, 2)
        .transpose(0, 2, 1, 3)
        .reshape(32, head_dim)
        for page in pages
    ]
    return torch.from_numpy(np.concatenate(panels)).view(torch.bfloat16)


def assert_rounded(stored: torch.Tensor, exact: torch.Tensor) -> None:
    """Float32 differs in its last bits between sines, which now and then changes the rounding."""
    assert (stored == exact.bfloat16()).float().mean() > 0.99
    assert torch.allclose(stored.float(), exact, rtol=2**-8, atol=2e-6)


@pytest.mark.parametrize("dims", [2, 16, 32, 64])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_queries_and_keys_turn(library, dims, interleaved, factor):
    """Scores depend on both rotations; partial rotation leaves the tail untouched."""
    spec = rope(dims, interleaved=interleaved, factor=factor)
    qkv = normal(3, 80, 4 * 64)
    builder = Builder(library, layers=1, pages=3, n_kv_heads=1, head_dim=64)
    builder.embed("qkv", qkv)
    builder.attention("qkv", "out", 2, scale=0.3, rope=spec)
    program = builder.build(80)
    got = program.forward([Seq(range(80), pages=[2, 0, 1])])
    want = reference.self_attention(torch.from_numpy(qkv), 2, 1, scale=0.3, rope=spec)
    assert relative_error(got, want) < 6e-3
    keys = torch.from_numpy(qkv).reshape(80, 4, 64)[:, 2]
    stored = stored_keys(program, [2, 0, 1], 64)[:80]
    assert_rounded(stored, reference.rotate(keys[:, None], spec, torch.arange(80))[:, 0])
    assert torch.equal(stored[:, dims:], keys[:, dims:].bfloat16())


def test_late_positions(library):
    """Angles are float32 products, as in transformers: at 100,000 the first of them is large."""
    spec = rope(64)
    pages = list(range(4))
    builder = Builder(library, layers=1, pages=4, n_kv_heads=1, head_dim=64)
    builder.embed("qkv", normal(4, 8, 3 * 64))
    builder.attention("qkv", "out", 1, rope=spec, window=8)
    program = builder.build(8)
    program.kv[:] = 0  # as if earlier tokens were there
    first = 100_000
    table = [pages[i % 4] for i in range((first + 8) // 32 + 1)]
    program.forward([Seq(range(8), first, table)])
    keys = torch.from_numpy(normal(4, 8, 3 * 64)).reshape(8, 3, 64)[:, 1:2]
    turned = reference.rotate(keys, spec, torch.arange(first, first + 8))[:, 0]
    assert first % 32 == 0
    assert_rounded(stored_keys(program, [table[first // 32]], 64)[:8], turned)


def test_layers_with_different_rotations(library):
    """Alternate layers of some families turn with another base, or not at all."""
    specs = [rope(32), rope(32, interleaved=True), rope(16, factor=0.5), None]
    qkv = normal(5, 40, 3 * 32)
    builder = Builder(library, layers=4, pages=2, n_kv_heads=1, head_dim=32)
    for layer, spec in enumerate(specs):
        builder.embed(f"qkv{layer}", qkv)
        builder.attention(f"qkv{layer}", f"out{layer}", 1, layer=layer, rope=spec)
    program = builder.build(40)
    program.forward([Seq(range(40), pages=[0, 1])])
    for layer, spec in enumerate(specs):
        want = reference.self_attention(torch.from_numpy(qkv), 1, 1, scale=1.0, rope=spec)
        assert relative_error(program.values(f"out{layer}", 40), want) < 1e-2
