"""Paged attention: against torch, and bitwise the same however the work is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from kt.kernels import reference
from kt.kernels.library import Library
from kt.models.spec import RopeSpec
from tests.native.harness import (
    Builder,
    Program,
    Seq,
    assert_same_bits,
    normal,
    packed_random,
    relative_error,
    unpacked,
)
from tests.native.test_linear import limit as product_limit

LENGTHS = (1, 31, 32, 33, 255, 256, 257, 300, 700)
# Queries and probabilities are bfloat16 where the CPU has its dot product, else float32.
LIMITS = {"avx512_bf16": 4e-3, "amx_model": 4e-3}


INT8_LIMIT = 1.5e-2  # of int8 pages, on normally distributed keys and values


def limit(library: Library) -> float:
    return LIMITS.get(library.name, 2e-6)


def program_of(
    library: Library,
    qkv: np.ndarray,
    n_heads: int,
    n_kv_heads: int,
    *,
    threads: int = 1,
    pages: int = 0,
    kv_format: str = "bf16",
    **options,
) -> Program:
    """One attention layer whose token i brings row i of qkv."""
    tokens, width = qkv.shape
    head_dim = width // (n_heads + 2 * n_kv_heads)
    builder = Builder(
        library,
        threads=threads,
        layers=1,
        pages=pages or pages_for(tokens),
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        kv_format=kv_format,
    )
    builder.embed("qkv", qkv)
    builder.attention("qkv", "out", n_heads, scale=head_dim**-0.5, **options)
    return builder.build(tokens)


def pages_for(tokens: int) -> int:
    return -(-tokens // 32)


def shuffled(tokens: int) -> list[int]:
    """Pages in no order."""
    return np.random.default_rng(1).permutation(pages_for(tokens)).tolist()


def sdpa(
    qkv: np.ndarray, n_heads: int, n_kv_heads: int, window: int = 0, *, rounded: bool = True
) -> torch.Tensor:
    """torch's own attention in float64, keys and values rounded to bfloat16."""
    tokens = len(qkv)
    heads = torch.from_numpy(qkv).reshape(tokens, n_heads + 2 * n_kv_heads, -1)
    q, k, v = heads.double().tensor_split((n_heads, n_heads + n_kv_heads), dim=1)
    if rounded:
        k, v = reference.round_bf16(k), reference.round_bf16(v)
    age = torch.arange(tokens)[:, None] - torch.arange(tokens)
    seen = (age >= 0) & ((age < window) if window else torch.tensor(True))
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=seen, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(tokens, -1)


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(library, length):
    qkv = normal(length, length, 4 * 64)
    program = program_of(library, qkv, 2, 1)
    got = program.forward([Seq(range(length), pages=shuffled(length))])
    assert relative_error(got, sdpa(qkv, 2, 1)) < limit(library)


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 1), (32, 1)])
def test_head_sizes_and_groups(library, head_dim, heads):
    n_heads, n_kv_heads = heads
    qkv = normal(head_dim, 70, (n_heads + 2 * n_kv_heads) * head_dim)
    got = program_of(library, qkv, *heads).forward([Seq(range(70), pages=shuffled(70))])
    assert relative_error(got, sdpa(qkv, *heads)) < limit(library)


@pytest.mark.parametrize("window", [1, 33, 128, 256, 10_000])
@pytest.mark.parametrize("length", [40, 300, 600])
def test_window(library, window, length):
    """Exactly `window` keys, the token itself included."""
    qkv = normal(window, length, 3 * 32)
    got = program_of(library, qkv, 1, 1, window=window).forward(
        [Seq(range(length), pages=shuffled(length))]
    )
    assert relative_error(got, sdpa(qkv, 1, 1, window)) < limit(library)
    if window == 1:
        values = reference.round_bf16(torch.from_numpy(qkv[:, 64:]))
        np.testing.assert_array_equal(got, values.numpy())


@pytest.mark.parametrize("dims", [32, 20])
def test_norm_of_heads_and_rotation(library, dims):
    """Norm, then rotation, then scale, as Qwen3 does; the gains differ for q and k."""
    spec = RopeSpec(dims, tuple((1000.0 ** -(np.arange(0, dims, 2) / dims)).tolist()))
    gains = normal(1, 32) + np.float32(1), normal(2, 32) + np.float32(1)
    qkv = normal(3, 90, 8 * 32, scale=5)
    options = {"rope": spec, "q_norm": gains[0], "k_norm": gains[1], "eps": 1e-2}
    program = program_of(library, qkv, 4, 2, **options)
    got = program.forward([Seq(range(90), pages=shuffled(90))])
    q_norm, k_norm = (torch.from_numpy(gain).double() for gain in gains)
    want = reference.self_attention(
        torch.from_numpy(qkv).double(),
        4,
        2,
        scale=32**-0.5,
        rope=spec,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=1e-2,
    )
    # A key near the middle of two bfloat16 values may go either way.
    assert relative_error(got, want) < max(limit(library), 2e-4)


@pytest.mark.parametrize("head_dim", [32, 80, 128])
@pytest.mark.parametrize("heads", [(2, 2), (8, 1), (32, 1)])
def test_int8_pages(library, head_dim, heads):
    """Hardly any error beside that of the rounding of queries, keys and values, which is below one
    and a half percent. Values of one dim are a hundred times larger: the others get few codes.
    """
    n_heads, n_kv_heads = heads
    qkv = normal(head_dim, 300, (n_heads + 2 * n_kv_heads) * head_dim)
    program = program_of(library, qkv, *heads, kv_format="int8")
    got = program.forward([Seq(range(300), pages=shuffled(300))])
    assert relative_error(got, sdpa(qkv, *heads, rounded=False)) < INT8_LIMIT
    want = reference.self_attention(
        torch.from_numpy(qkv), *heads, scale=head_dim**-0.5, kv_format="int8"
    )
    assert relative_error(got, want) < 3e-4


def test_int8_probabilities_keep_the_small_ones(library):
    """One key has half of the weight, 255 others the rest: two thousandths each."""
    qkv = np.zeros((256, 3 * 32), np.float32)
    qkv[:, 0] = 32**0.5  # every query: 1 in the first dim, after the scale
    qkv[0, 32] = np.log(255)
    qkv[:, 64:] = normal(12, 256, 32)
    qkv[1:, 64] += 3  # together they outweigh the first key's value
    got = program_of(library, qkv, 1, 1, kv_format="int8").forward(
        [Seq(range(256), pages=shuffled(256))]
    )
    assert relative_error(got[-1:], sdpa(qkv, 1, 1, rounded=False)[-1:]) < INT8_LIMIT


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("part", ["key", "value"])
def test_int8_pages_do_not_hide_what_is_not_finite(library, bad, part):
    qkv = normal(13, 40, 3 * 32)
    qkv[5, {"key": 40, "value": 70}[part]] = bad
    program = program_of(library, qkv, 1, 1, kv_format="int8")
    for row in range(40):
        status, _ = program.run([Seq([row], row, pages=[0, 1])])
        assert (status == library.lib.KT_NOT_FINITE) == (row >= 5)


def test_the_reference_agrees_with_torch():
    qkv = normal(4, 100, 8 * 32)
    for window in (0, 1, 33):
        got = reference.self_attention(
            torch.from_numpy(qkv).double(), 4, 2, scale=32**-0.5, window=window
        )
        assert relative_error(got, sdpa(qkv, 4, 2, window)) < 1e-12


CASES = {
    "plain": (300, 2, 1, 64, 0),
    "groups": (300, 32, 1, 32, 0),
    "odd head": (300, 3, 3, 80, 0),
    "window": (600, 2, 1, 32, 100),
    "long": (700, 2, 1, 32, 0),
}


def chunked(program: Program, length: int, chunk: int) -> np.ndarray:
    pages = shuffled(length)
    edges = [*range(0, length, chunk), length]
    return np.concatenate(
        [program.forward([Seq(range(a, b), a, pages)]) for a, b in pairwise(edges)]
    )


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_chunks_and_threads_give_the_same_bits(library, case, kv_format):
    """Decoding (chunks of 1) with two threads attends key splits in parallel."""
    length, n_heads, n_kv_heads, head_dim, window = CASES[case]
    qkv = normal(5, length, (n_heads + 2 * n_kv_heads) * head_dim)
    whole = None
    options = {"window": window, "kv_format": kv_format}
    for threads in (1, 2, 3):
        program = program_of(library, qkv, n_heads, n_kv_heads, threads=threads, **options)
        for chunk in (length, 64, 7) if threads == 1 else (length, 7):
            got = chunked(program, length, chunk)
            whole = got if whole is None else whole
            assert_same_bits(got, whole)
    for threads in (1, 2):
        program = program_of(library, qkv, n_heads, n_kv_heads, threads=threads, **options)
        assert_same_bits(chunked(program, length, 1), whole)
    error = relative_error(whole, sdpa(qkv, n_heads, n_kv_heads, window))
    assert error < (limit(library) if kv_format == "bf16" else INT8_LIMIT)


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize(("kv_heads", "window"), [(1, 0), (1, 700), (7, 700)])
def test_parallel_splits_are_the_serial_ones(library, kv_format, kv_heads, window):
    """A late query alone is cut into key splits for all threads, or with many KV heads into spans
    of four, which a window may cut; in a large batch its splits stay together on one.
    """
    length = 5 * 256 + 5
    qkv = normal(6, length, (max(2, kv_heads) + 2 * kv_heads) * 32)
    pages = shuffled(length)
    heads = (max(2, kv_heads), kv_heads)
    options = {"window": window, "kv_format": kv_format}
    program = program_of(library, qkv, *heads, threads=2, **options)
    serial = program.forward([Seq(range(length), pages=pages)])
    for row in (length - 1, 1280, 1279, 700, 256, 255):  # a page's first token clears the rest
        assert_same_bits(program.forward([Seq([row], row, pages)]), serial[row : row + 1])


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize(("kv_heads", "window"), [(1, 0), (2, 700), (7, 0)])
def test_unlike_sequences_share_out(library, kv_format, kv_heads, window):
    """Few tokens of long and short sequences: threads share their parts, and so cut some of them
    anywhere; each is as if alone.
    """
    qkv = normal(8, 2100, (max(2, kv_heads) + 2 * kv_heads) * 32)
    pages = shuffled(2100)
    options = {"window": window, "kv_format": kv_format}
    heads = (max(2, kv_heads), kv_heads)
    mine = {3: pages[:1], 2000: pages[1:64], 40: pages[64:66]}
    alone = {}
    for threads in (1, 2, 3):
        program = program_of(library, qkv, *heads, threads=threads, **options)
        for last, where in mine.items():
            whole = program.forward([Seq(range(last + 1), pages=where)])
            alone.setdefault(last, whole[last])
        together = [Seq([last], last, where) for last, where in mine.items()]
        assert_same_bits(program.forward(together), np.array(list(alone.values())))


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
def test_sequences_beside_each_other(library, kv_format):
    """A prefill chunk, a decode and a fresh sequence in one batch: each as if alone."""
    qkv = normal(7, 700, 4 * 64)
    pages = shuffled(700)
    mine = {"a": pages[:10], "b": pages[10:20], "c": pages[20:22]}
    tokens = {"a": range(300), "b": range(300, 600), "c": range(600, 650)}

    def alone(name: str) -> np.ndarray:
        program = program_of(library, qkv, 2, 1, kv_format=kv_format)
        return program.forward([Seq(tokens[name], pages=mine[name])])

    program = program_of(library, qkv, 2, 1, threads=2, kv_format=kv_format)
    first = program.forward([Seq(tokens["b"][:299], pages=mine["b"])])
    second = program.forward(
        [
            Seq(tokens["a"][:100], pages=mine["a"]),
            Seq(tokens["b"][299:], 299, mine["b"]),
            Seq(tokens["c"][:1], pages=mine["c"]),
        ]
    )
    third = program.forward(
        [Seq(tokens["c"][1:], 1, mine["c"]), Seq(tokens["a"][100:], 100, mine["a"])]
    )
    assert_same_bits(np.concatenate([second[:100], third[49:]]), alone("a"))
    assert_same_bits(np.concatenate([first, second[100:101]]), alone("b"))
    assert_same_bits(np.concatenate([second[101:], third[:49]]), alone("c"))


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize("length", [1, 33, 290])
def test_a_page_keeps_nothing_of_its_last_owner(library, length, kv_format):
    """KV memory starts as NaN everywhere, and then holds infinities of another sequence."""
    qkv = normal(8, length, 3 * 32)
    pages = shuffled(length)
    program = program_of(library, qkv, 1, 1, kv_format=kv_format)
    want = program.forward([Seq(range(length), pages=pages)])
    assert np.isfinite(want).all()
    program.kv.view(np.uint16)[:] = 0x7F80
    assert_same_bits(program.forward([Seq(range(length), pages=pages)]), want)
    program.kv.view(np.uint16)[:] = 0x7F80
    assert_same_bits(chunked(program, length, 16), want)


@pytest.mark.parametrize("packed_format", ["F32", "BF16", "I8_G32", "I4_K32M"])
@pytest.mark.parametrize("head_dim", [32, 80, 128])
def test_products_of_attended_rows(library, packed_format, head_dim):
    """Heads of 80 share blocks of 32 with their neighbours, and the last block has padding."""
    n_heads, length = (16 if packed_format == "I4_K32M" else 3), 40
    width = n_heads * head_dim
    weight = packed_random(library, packed_format, 33, width)
    results = []
    for threads in (1, 2):
        builder = Builder(
            library, threads=threads, layers=1, pages=2, n_kv_heads=n_heads, head_dim=head_dim
        )
        builder.embed("qkv", normal(11, length, 3 * width))
        builder.attention("qkv", "out", n_heads, scale=head_dim**-0.5)
        builder.linear("out", "y", [weight])
        program = builder.build(length)
        results.append(program.forward([Seq(range(length), pages=[0, 1])]))
    assert_same_bits(*results)
    out = torch.from_numpy(program.values("out", length)).double()
    want = reference.linear(out, unpacked(library, weight)[0])
    assert relative_error(results[0], want) < product_limit(packed_format, library.name)


def test_large_scores_do_not_overflow(library):
    """Scores of thousands: nearly all weight lies on one key."""
    qkv = normal(9, 300, 3 * 32, scale=60)
    got = program_of(library, qkv, 1, 1).forward([Seq(range(300), pages=shuffled(300))])
    judged = qkv.copy()
    if limit(library) > 1e-3:  # the queries are bfloat16, scaled to give scores in units of log 2
        factor = np.float32(32**-0.5) * np.float32(1 / np.log(2))
        scaled = reference.round_bf16(torch.from_numpy(qkv[:, :32] * factor))
        judged[:, :32] = scaled.numpy() / factor
    assert relative_error(got, sdpa(judged, 1, 1)) < max(limit(library), 1e-4)


def test_batches_that_do_not_fit_are_refused(library):
    program = program_of(library, normal(10, 64, 96), 1, 1)
    refusals = {
        "page table is too short": [Seq(range(40), pages=[0])],
        "page number is out of range": [Seq(range(40), pages=[0, 2])],
        "more tokens than": [Seq(range(40), pages=[0, 1]), Seq(range(40), pages=[0, 1])],
        "an empty sequence": [Seq([], pages=[0])],
    }
    for words, batch in refusals.items():
        status, _ = program.run(batch)
        assert status == library.lib.KT_BAD_ARGUMENT
        assert words in library.error()
