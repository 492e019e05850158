"""The gated MLP, dense and of routed experts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt.kernels import reference
from kt.kernels.library import Library
from kt.models.spec import RouterSpec
from tests.native.harness import (
    Builder,
    Packed,
    Program,
    Seq,
    assert_same_bits,
    normal,
    pack,
    packed_experts,
    relative_error,
    unpacked,
)
from tests.native.test_linear import limit

HIDDEN = 96
# gate and up in one format, down in another: what mixed files have.
PAIRS = [
    ("F32", "F32"),
    ("BF16", "BF16"),
    ("I8_G32", "I8_G32"),
    ("I4_G32", "I8_G32"),
    ("I4_G32M", "I4_G32M"),
    ("BF16", "I8_G32"),
]


def weights(library: Library, formats: tuple[str, str], count: int, inner: int) -> list[Packed]:
    gate_format, down_format = formats
    return [
        packed_experts(library, gate_format, count, inner, HIDDEN, seed=1),
        packed_experts(library, gate_format, count, inner, HIDDEN, seed=2),
        packed_experts(library, down_format, count, HIDDEN, inner, seed=3),
    ]


def most(formats: tuple[str, str], variant: str) -> float:
    """Errors of the two products and of the rounded hidden values add up."""
    return 3 * max(limit(name, variant) for name in formats)


def normed(x: np.ndarray) -> torch.Tensor:
    return reference.rms_norm(torch.from_numpy(x).double(), torch.ones(x.shape[1]), 1e-6)


@pytest.mark.parametrize("formats", PAIRS)
@pytest.mark.parametrize("inner", [1, 33, 48, 96])
def test_dense(library, formats, inner):
    packed = weights(library, formats, 1, inner)
    x, base = normal(4, 40, HIDDEN), normal(5, 40, HIDDEN)
    builder = Builder(library)
    builder.embed("x", x)
    builder.norm("x", "normed")
    builder.embed("out", base)
    builder.mlp("normed", "out", packed)
    program = builder.build(40)
    got = program.forward(40)
    want = reference.mlp(normed(x), *(unpacked(library, w)[0] for w in packed))
    assert relative_error(got - base, want) < most(formats, library.name)
    for tokens in (1, 2, 7, 17):
        assert_same_bits(program.forward(tokens), got[:tokens])


def experts(
    library: Library,
    packed: list[Packed],
    x: np.ndarray,
    logits: np.ndarray,
    spec: RouterSpec,
    threads: int = 1,
) -> Program:
    builder = Builder(library, threads=threads)
    builder.embed("x", x)
    builder.norm("x", "normed")
    builder.embed("out", np.zeros((len(x), HIDDEN), np.float32))
    builder.embed("logits", logits)
    builder.route("logits", spec)
    builder.mlp("normed", "out", packed, spec)
    return builder.build(len(x))


def wanted(
    library: Library, packed: list[Packed], x: np.ndarray, logits: np.ndarray, spec: RouterSpec
) -> torch.Tensor:
    ids, shares = reference.route(torch.from_numpy(logits).double(), spec)
    return reference.experts(normed(x), ids, shares, *(unpacked(library, w) for w in packed))


@pytest.mark.parametrize("formats", PAIRS)
@pytest.mark.parametrize("inner", [33, 48])
@pytest.mark.parametrize("top_k", [1, 8])
def test_experts(library, formats, inner, top_k):
    """Experts 3 and 7 get no token with top_k 1; with 8 of 12 every count occurs."""
    packed = weights(library, formats, 12, inner)
    x, logits = normal(6, 50, HIDDEN), normal(7, 50, 12)
    logits[:, [3, 7]] -= 100 if top_k == 1 else 0
    spec = RouterSpec(12, top_k)
    program = experts(library, packed, x, logits, spec)
    got = program.forward(50)
    want = wanted(library, packed, x, logits, spec)
    assert relative_error(got, want) < most(formats, library.name)
    for tokens in (1, 2, 17):
        assert_same_bits(program.forward(tokens), got[:tokens])
    for row in range(0, 50, 7):
        assert_same_bits(program.forward([Seq([row])]), got[row : row + 1])
    for threads in (2, 3):
        assert_same_bits(
            experts(library, packed, x, logits, spec, threads=threads).forward(50), got
        )


@pytest.mark.parametrize("formats", [("BF16", "BF16"), ("I4_G32", "I8_G32")])
def test_all_tokens_on_one_expert(library, formats):
    """More tokens than one block of an expert's rows holds."""
    packed = weights(library, formats, 4, 33)
    x, logits = normal(8, 500, HIDDEN), np.zeros((500, 4), np.float32)
    logits[:, 2] = 50
    spec = RouterSpec(4, 1, normalise=False)
    program = experts(library, packed, x, logits, spec, threads=2)
    got = program.forward(500)
    want = reference.mlp(normed(x), *(unpacked(library, w)[2] for w in packed))
    assert relative_error(got, want) < most(formats, library.name)
    assert_same_bits(program.forward([Seq([499])]), got[499:])


def test_every_expert_for_every_token(library):
    packed = weights(library, ("I8_G32", "I8_G32"), 5, 48)
    x, logits = normal(9, 30, HIDDEN), normal(10, 30, 5)
    spec = RouterSpec(5, 5, score="sigmoid", normalise=False, scale=2.5)
    got = experts(library, packed, x, logits, spec).forward(30)
    want = wanted(library, packed, x, logits, spec)
    assert relative_error(got, want) < most(("I8_G32", "I8_G32"), library.name)


@pytest.mark.parametrize("size", [1.0, 20.0, 200.0])
def test_silu_of_small_and_large_values(library, size):
    """x * sigmoid(x), where e^-x overflows too."""
    x = np.linspace(-size, size, 64, dtype=np.float32)[:, None]
    builder = Builder(library)
    builder.embed("x", x)

    builder.embed("out", np.zeros((64, 1), np.float32))

    gate = pack(library, "F32", np.ones((1, 1), np.float32))
    builder.mlp("x", "out", [gate, gate, gate])
    got = builder.build(64).forward(64)
    wide = torch.from_numpy(x).double()
    np.testing.assert_allclose(got, wide * torch.nn.functional.silu(wide), rtol=2e-6, atol=1e-30)
