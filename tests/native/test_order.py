"""Inputs that are gathered in another order: kt_op.order of LINEAR and MLP."""

from __future__ import annotations

import numpy as np
import pytest

from kt.kernels.library import Library
from kt.models.spec import RouterSpec
from tests.native.harness import (
    Builder,
    Packed,
    Seq,
    assert_same_bits,
    normal,
    pack,
    packed_random,
    relative_error,
)
from tests.native.test_mlp import HIDDEN, weights

FORMATS = ["F32", "F16", "BF16", "I8_G32", "I4_G32", "I4_G32M"]
TOKENS = 70
K = 96


def shuffled(seed: int, *shape: int) -> np.ndarray:
    """A random order of columns, or one for each expert."""
    numbers = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
    return np.ascontiguousarray(np.random.default_rng(seed).permuted(numbers, axis=-1))


def set_order(builder: Builder, order: np.ndarray) -> None:
    """For the operation that was added last."""
    builder.keep.append(order)
    builder.ops[-1].order = builder.library.ffi.cast("int32_t *", order.ctypes.data)


def linear(library: Library, matrices: list[Packed], x: np.ndarray, order: np.ndarray, threads=1):
    builder = Builder(library, threads=threads)
    builder.embed("x", x)
    builder.linear("x", "y", matrices)  # of a slot that no norm has written
    set_order(builder, order)
    return builder.build(TOKENS)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_columns_are_gathered(library, packed_format):
    """What is gathered is what the same numbers in that order give."""
    matrices = [packed_random(library, packed_format, n, K, seed=n) for n in (33, 16)]
    x, order = normal(1, TOKENS, K), shuffled(2, K)
    got = linear(library, matrices, x, order)
    straight = np.arange(K, dtype=np.int32)
    sorted_x = np.ascontiguousarray(x[:, order])
    want = linear(library, matrices, sorted_x, straight).forward(TOKENS)
    assert_same_bits(got.forward(TOKENS), want)
    for tokens in (1, 2, 17):
        assert_same_bits(got.forward(tokens), want[:tokens])
    for threads in (2, 3):
        made = linear(library, matrices, x, order, threads)
        assert_same_bits(made.forward(TOKENS), want)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_the_order_that_is_there_changes_nothing(library, packed_format):
    matrix = packed_random(library, packed_format, 33, K)
    results = []
    for ordered in (False, True):
        builder = Builder(library)
        builder.embed("x", normal(1, TOKENS, K))
        builder.norm("x", "normed")
        builder.linear("normed", "y", [matrix])
        if ordered:
            set_order(builder, np.arange(K, dtype=np.int32))
        results.append(builder.build(TOKENS).forward(TOKENS))
    assert_same_bits(*results)


def mlp(library, packed, x, logits, spec, order, threads=1):
    builder = Builder(library, threads=threads)
    builder.embed("x", x)
    builder.norm("x", "normed")
    if spec:
        builder.embed("router", logits)
        builder.route("router", spec)
    builder.embed("out", np.zeros((len(x), HIDDEN), np.float32))
    builder.mlp("normed", "out", packed, spec)
    if order is not None:
        set_order(builder, order)
    return builder.build(len(x))


@pytest.mark.parametrize("formats", [("F32", "F32"), ("BF16", "BF16"), ("I4_G32", "I8_G32")])
@pytest.mark.parametrize("top_k", [0, 1, 3])
def test_every_expert_gathers_in_its_own_order(library, formats, top_k):
    """Columns in another order, and the inputs in the same one: the same sums. top_k 0: dense."""
    count = 5 if top_k else 1
    spec = RouterSpec(count, top_k) if top_k else None
    x, logits = normal(6, TOKENS, HIDDEN), normal(7, TOKENS, count)
    order = shuffled(8, count, HIDDEN)
    floats = [normal(i, count, 48, HIDDEN, scale=0.1) for i in (1, 2)]
    down = weights(library, formats, count, 48)[2]
    results = []
    for gathered in (False, True):
        packed = [
            pack(
                library,
                formats[0],
                np.take_along_axis(part, order[:, None], axis=2) if gathered else part,
            )
            for part in floats
        ]
        program = mlp(library, [*packed, down], x, logits, spec, order if gathered else None)
        results.append(program.forward(TOKENS))
        if gathered:
            for threads in (2, 3):
                again = mlp(library, [*packed, down], x, logits, spec, order, threads)
                assert_same_bits(again.forward(TOKENS), results[1])
            for row in range(0, TOKENS, 9):
                assert_same_bits(program.forward([Seq([row])]), results[1][row : row + 1])
    # 4 bits with scales of other groups are other weights: about 8 % off each.
    limit = {"F32": 1e-5, "BF16": 2e-3, "I4_G32": 0.25}[formats[0]]
    assert relative_error(results[1], results[0]) < limit


def test_orders_that_make_no_sense_are_refused(library):
    x, matrix = normal(1, 4, K), packed_random(library, "I8_G32", 16, K)
    for bad in (-1, K):
        order = np.arange(K, dtype=np.int32)
        order[7] = bad
        with pytest.raises(ValueError, match="operation 1: bad order of columns"):
            linear(library, [matrix], x, order)
    other = packed_random(library, "F32", 16, K)
    with pytest.raises(ValueError, match="operation 1: bad order"):
        linear(library, [matrix, other], x, np.arange(K, dtype=np.int32))
    builder = Builder(library)
    builder.embed("x", x)
    builder.norm("x", "y")
    set_order(builder, np.arange(K, dtype=np.int32))
    with pytest.raises(ValueError, match="operation 1: bad order"):
        builder.build(4)
