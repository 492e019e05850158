"""Matrix products: every format, on every variant, at every tile height."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt.kernels import reference
from kt.kernels.library import Library, load
from tests.native.harness import (
    FORMATS,
    GGUF_FORMATS,
    GROUPED,
    RUNNABLE,
    Builder,
    Packed,
    Program,
    Seq,
    assert_same_bits,
    block_elements,
    normal,
    packed_random,
    relative_error,
    unpacked,
)

TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 31, 33, 70)
MOST = max(TOKENS)
K_FORMATS = tuple(name for name, kind in GGUF_FORMATS.items() if block_elements(kind) == 256)
BF16_DOT = {"avx512_bf16", "amx_model"}  # their BF16 kernels round activations to bfloat16


def shapes(packed_format: str) -> list[tuple[int, int]]:
    """Odd [n, k] around the panel of 16, the pair of 32 and the block of 32."""
    if packed_format in K_FORMATS:
        return [(1, 256), (33, 768)]
    free = ("F32", "F16", "BF16", "I8_G32", *GROUPED)
    odd = [(1, 33), (17, 31)] if packed_format in free else []
    return [*odd, (15, 32), (48, 96), (33, 480)]


def limit(packed_format: str, variant: str) -> float:
    """The relative error that rounding of activations may cause: to 8 bits per block of 32, to
    bfloat16, or not at all.
    """
    if packed_format in (*GGUF_FORMATS, *GROUPED):
        return 1e-2
    return 2e-3 if packed_format == "BF16" and variant in BF16_DOT else 1e-5


def product(library: Library, weights: list[Packed], x: np.ndarray, threads: int = 1) -> Program:
    builder = Builder(library, threads=threads)
    builder.embed("x", x)
    builder.norm("x", "normed")
    builder.linear("normed", "y", weights)
    return builder.build(MOST)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_products_and_rows_alone(library, packed_format):
    for n, k in shapes(packed_format):
        weight = packed_random(library, packed_format, n, k, seed=n + k)
        x = normal(n * k, MOST, k)
        program = product(library, [weight], x)
        whole = program.forward(MOST)
        normed = reference.rms_norm(torch.from_numpy(x).double(), torch.ones(k), 1e-6)
        want = reference.linear(normed, unpacked(library, weight)[0])
        assert relative_error(whole, want) < limit(packed_format, library.name)
        for tokens in TOKENS:
            assert_same_bits(program.forward(tokens), whole[:tokens])
        for row in range(MOST):
            assert_same_bits(program.forward([Seq([row])]), whole[row : row + 1])


@pytest.mark.parametrize("packed_format", FORMATS)
def test_thread_counts_give_the_same_bits(library, packed_format):
    weight = packed_random(library, packed_format, 200, 256)
    x = normal(1, MOST, 256)
    want = product(library, [weight], x).forward(MOST)
    for threads in (2, 3):
        assert_same_bits(product(library, [weight], x, threads).forward(MOST), want)


@pytest.mark.parametrize("packed_format", GGUF_FORMATS)
def test_integer_formats_give_the_same_bits_on_amx_and_vnni(packed_format):
    """Sums are exact inside a block and joined in one order, so tiles and vectors agree."""
    x = normal(2, MOST, 512)
    results = {}
    for name in {"amx_model", "avx512_bf16", "avx512_vbmi", "avx512_vnni"} & set(RUNNABLE):
        library = load(name)
        weight = packed_random(library, packed_format, 65, 512)
        results[name] = product(library, [weight], x).forward(MOST)
    assert len(results) == 4
    for result in results.values():
        assert_same_bits(result, results["amx_model"])


@pytest.mark.parametrize("packed_format", FORMATS)
def test_integers_are_exact(library, packed_format):
    """Small integers survive every rounding, so the product is known without any tolerance."""
    rng = np.random.default_rng(7)
    k, n = 256, 40
    # A block's largest activation is 127 and the scale of the norm is 1: codes are the values.
    x = rng.integers(-7, 8, (9, k)).astype(np.float32)
    x[:, ::32] = 127
    x *= (np.sqrt(k) / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    weight = packed_random(library, packed_format, n, k, seed=3)
    program = product(library, [weight], x)
    got = program.forward(9)
    normed = torch.from_numpy(program.values("normed", 9)).double()
    if packed_format == "BF16" and library.name in BF16_DOT:
        normed = reference.round_bf16(normed)
    want = reference.linear(normed, unpacked(library, weight)[0])
    assert relative_error(got, want) < 2e-6


def test_weights_side_by_side_with_bias_and_addition(library):
    """Widths that are no multiple of 32, of three formats; added to what the slot holds."""
    k, widths, formats = 96, (17, 33, 5), ("I8_G32", "BF16", "F32")
    weights = [
        packed_random(library, packed_format, n, k, seed=n)
        for n, packed_format in zip(widths, formats, strict=True)
    ]
    biases = [normal(1, 17), None, normal(2, 5)]
    x, base = normal(3, 20, k), normal(4, 20, sum(widths))
    builder = Builder(library)
    builder.embed("x", x)
    builder.norm("x", "normed")
    builder.embed("y", base)
    builder.linear("normed", "y", weights, bias=biases, add=True)
    builder.linear("normed", "z", weights, bias=biases)
    program = builder.build(20)
    z = program.forward(20)
    normed = reference.rms_norm(torch.from_numpy(x), torch.ones(k), 1e-6)
    want = torch.cat(
        [
            reference.linear(
                normed.double(),
                unpacked(library, weight)[0],
                None if bias is None else torch.from_numpy(bias).double(),
            )
            for weight, bias in zip(weights, biases, strict=True)
        ],
        dim=1,
    )
    assert relative_error(z, want) < 1e-2
    for from_, to, most in [(0, 17, 1e-2), (17, 50, 2e-3), (50, 55, 1e-5)]:
        assert relative_error(z[:, from_:to], want[:, from_:to]) < most
    assert_same_bits(program.values("y", 20), base + z)


def test_only_rows_with_logits_go_on_after_select(library):
    x = normal(1, 20, 64)
    weight = packed_random(library, "I8_G32", 40, 64)
    builder = Builder(library)
    builder.embed("x", x)
    builder.select("x", "chosen")
    builder.norm("chosen", "normed")
    builder.linear("normed", "y", [weight])
    program = builder.build(20)
    rows = [0, 3, 4, 19]
    got = program.forward(20, logit_rows=rows)
    assert_same_bits(got, product(library, [weight], x).forward(20)[rows])


def test_a_pass_may_stop_early(library):
    """Operations past n_ops do not run, and no logits are written."""
    program = product(library, [packed_random(library, "I8_G32", 40, 64)], normal(1, 20, 64))
    status, logits = program.run(20, n_ops=1)
    assert status == library.lib.KT_OK
    assert (logits == 7.0).all()
    assert_same_bits(program.values("x", 20), normal(1, 20, 64))
    assert not program.values("normed", 20).any()
    status, _ = program.run(20, n_ops=4)
    assert status == library.lib.KT_BAD_ARGUMENT


def test_programs_that_make_no_sense_are_refused(library):
    weight = packed_random(library, "I8_G32", 40, 64)
    builder = Builder(library)
    builder.embed("x", normal(1, 4, 64))
    builder.linear("x", "y", [weight])
    with pytest.raises(ValueError, match="a slot is read encoded but not by a norm"):
        builder.build(4)
    builder = Builder(library)
    builder.embed("x", normal(1, 4, 96))
    builder.norm("x", "normed")
    builder.linear("normed", "y", [weight])
    with pytest.raises(ValueError, match="operation 2: bad linear shape"):
        builder.build(4)
