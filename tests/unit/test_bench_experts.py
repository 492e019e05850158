"""The random layer of `kt bench experts`: formats, weights, chosen experts, and arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kt.bench import experts, formats
from kt.bench.expert_layer import Layers, Tokens
from kt.bench.expert_weights import PARTS, ExpertWeights, Sizes
from kt.bench.formats import FORMATS, Format
from kt.bench.random_weights import random_tensor
from kt.errors import DoesNotFit, UsageError
from kt.kernels import library
from kt.kernels.library import Library
from kt.kernels.variants import select
from kt.machine.survey import survey
from kt.placement.budget import PACKINGS
from kt.units import GIB, MIB
from kt.weights.dequantize import dequantize

SIZES = Sizes(hidden=256, intermediate=512, experts=8, top_k=2)


@pytest.fixture(scope="module")
def native() -> Library:
    return library.load(select(survey(gpus=False).cpu, None).value.name)


@pytest.fixture(scope="module")
def pool(native: Library) -> Iterator[Any]:
    yield native.new_pool(None, 2)


def test_every_packed_format_has_a_row(native: Library) -> None:
    assert {row.packed for row in FORMATS} == set(PACKINGS)
    assert len(FORMATS) == native.lib.KT_FORMATS


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("int8", "I8_G32"),
        ("Q8_0", "I8_G32"),
        ("int4", "I4_G32"),
        ("q4_k", "I4_K32M"),
        ("q6_k", "I6_K16"),
        ("i4_k32m", "I4_K32M"),
        ("fp8", "F8_G128"),
        ("fp8_row", "F8_ROW"),
        ("int8_row", "I8_ROW"),
        ("int4_g128", "I4_G128"),
        ("awq", "I4_Z128H"),
        ("iq2_xs", "I3_IQ2"),
        ("mxfp4", "F4_MX"),
        ("nvfp4", "F4_NV"),
        ("q2_k", "I2_K16M"),
        ("BF16", "BF16"),
    ],
)
def test_names(name: str, packed: str) -> None:
    assert formats.find(name).packed == packed


def test_an_unknown_format_names_the_nearest_and_all() -> None:
    with pytest.raises(UsageError) as caught:
        formats.find("q4k")
    assert "q4k" in caught.value.message
    assert "Did you mean q4_k?" in caught.value.hint
    assert all(row.name in caught.value.hint for row in FORMATS)


@pytest.mark.parametrize("chosen", [f for f in FORMATS if f.source != "F32"], ids=lambda f: f.name)
def test_random_blocks_are_weights(chosen: Format) -> None:
    values = dequantize(random_tensor(chosen, 64, 1024, np.random.default_rng(0)))
    assert values.shape == (64, 1024)
    assert np.std(values) == pytest.approx(1024**-0.5, rel=0.1)
    assert abs(np.mean(values)) < 0.1 * 1024**-0.5


@pytest.mark.parametrize("chosen", FORMATS, ids=lambda f: f.name)
def test_the_layer_computes_what_numpy_does(native: Library, pool: Any, chosen: Format) -> None:
    weights = ExpertWeights(native, pool, SIZES, chosen, layers=2)
    assert weights.nbytes == 2 * 8 * SIZES.expert_bytes(chosen)
    tokens = Tokens(256, 8, 2, batch=5)
    layers = Layers(native, pool, weights, tokens, batch=5)
    limit = {"dot_int8": 0.02, "dot_bf16": 0.006, "fma_f32": 1e-5}[chosen.peak]
    for count in (1, 5):
        assert experts.relative_error(layers, weights, tokens, count) < limit
    # Every expert is in its own memory and is one of the bases.
    matrices = [weights.unpack(e, part) for part in PARTS for e in (0, 1, 4)]
    for first, second, copy in (matrices[i : i + 3] for i in (0, 3, 6)):
        assert np.array_equal(first, copy) and not np.array_equal(first, second)


def test_both_layers_are_the_same_and_stopping_before_the_experts_leaves_them_out(
    native: Library, pool: Any
) -> None:
    weights = ExpertWeights(native, pool, SIZES, formats.find("int8"), layers=2)
    tokens = Tokens(256, 8, 2, batch=3)
    layers = Layers(native, pool, weights, tokens, batch=3)
    ids = tokens.ids(3, 1)
    for layer in range(2):
        layers.call(layer, ids)()
    assert np.array_equal(layers.hidden(0, 3), layers.hidden(1, 3))
    assert not np.array_equal(layers.hidden(0, 3), tokens.hidden[ids])
    layers.call(0, ids, experts=False)()
    assert np.array_equal(layers.hidden(0, 3), tokens.hidden[ids])


def test_single_tokens_meet_every_expert_before_one_returns() -> None:
    tokens = Tokens(32, experts=16, top_k=4, batch=1)
    chosen = [tokens.chosen(tokens.ids(1, call))[0].tolist() for call in range(8)]
    for turn in (chosen[:4], chosen[4:]):
        assert sorted(expert for token in turn for expert in token) == list(range(16))
    assert tokens.active(tokens.ids(1, 3)) == 4


@pytest.mark.parametrize(("n_experts", "top_k"), [(6, 4), (5, 5), (7, 1)])
def test_a_token_never_chooses_an_expert_twice(n_experts: int, top_k: int) -> None:
    tokens = Tokens(32, n_experts, top_k, batch=1)
    for call in range(tokens.cycle):
        boosted = np.flatnonzero(tokens.logits[tokens.ids(1, call)][0] > 5)
        assert len(boosted) == top_k


def test_tokens_of_a_batch_choose_independently() -> None:
    tokens = Tokens(32, experts=128, top_k=8, batch=512)
    used = np.bincount(tokens.chosen(tokens.ids(512, 0)).ravel(), minlength=128)
    assert used.sum() == 512 * 8
    assert 8 < used.min() and used.max() < 64  # 32 each on average
    active = np.mean([tokens.active(tokens.ids(8, call)) for call in range(64)])
    assert active == pytest.approx(128 * (1 - (1 - 8 / 128) ** 8), rel=0.05)
    assert not np.array_equal(tokens.ids(8, 0), tokens.ids(8, 1))


@pytest.mark.parametrize(
    ("sizes", "name", "words"),
    [
        (Sizes(256, 512, 8, 9), "int8", "--top-k 9"),
        (Sizes(0, 512, 8, 2), "int8", "--hidden 0"),
        (Sizes(256, 512, 0, 2), "int8", "--experts 0"),
        (Sizes(256, 96, 8, 2), "q4_k", "--intermediate 96: i4_k32m has blocks of 256"),
        (Sizes(40, 96, 8, 2), "q5_0", "--hidden 40: i5_g32 has blocks of 32"),
    ],
)
def test_sizes_that_are_no_layer(sizes: Sizes, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sizes.check(formats.find(name))


def test_counts_of_one_expert() -> None:
    # gate and up: 32 panels of 16 rows, 256 columns; down: 16 panels, 512 columns; one byte a
    # code and two a scale of 32.
    assert SIZES.expert_bytes(formats.find("int8")) == 3 * 256 * 512 * 34 // 32
    assert SIZES.expert_bytes(formats.find("bf16")) == 3 * 256 * 512 * 2
    assert SIZES.operations == 2 * 3 * 256 * 512


def test_layers_enough_for_dram_but_not_for_more_than_there_is() -> None:
    qwen = Sizes(2048, 768, 128, 8)
    wanted = experts.Wanted(qwen, formats.find("q4_k"), (1,))
    layer = 128 * qwen.expert_bytes(wanted.format)
    few = experts.choose_layers(wanted, (), 64 * GIB)
    assert (few.value - 1) * layer < GIB <= few.value * layer
    assert experts.choose_layers(wanted, (), GIB).value == GIB // 2 // layer
    small = experts.Wanted(Sizes(256, 256, 8, 2), wanted.format, (1,))
    assert experts.choose_layers(small, (), 64 * GIB) == (64, "the most that are made")
    with pytest.raises(DoesNotFit, match="128 experts need"):
        experts.choose_layers(wanted, (), 256 * MIB)
    asked = experts.Wanted(qwen, wanted.format, (1,), layers=7)
    assert experts.choose_layers(asked, (), 64 * GIB).value == 7
    with pytest.raises(DoesNotFit):
        experts.choose_layers(asked, (), GIB)
