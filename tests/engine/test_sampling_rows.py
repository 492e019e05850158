"""Rows as odd as they come: every draw is that of the float64 formula with the same number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kt.engine.batch import F32, Sampled, SampleParams
from kt.kernels import library as kernels
from kt.kernels.variants import select
from kt.machine.survey import survey
from tests.engine.native_sampling import call, make, random_logits
from tests.sampling_oracle import probabilities, uniform

Sampler = Callable[[F32, list[SampleParams]], list[Sampled]]
VOCAB = 151_937  # not a multiple of any vector


@contextmanager
def sampler(variant: str | None) -> Iterator[Sampler]:
    library = kernels.load(select(survey(gpus=False).cpu, variant).value.name)
    pool = library.lib.kt_pool_new(2, library.ffi.NULL)
    yield lambda logits, params: call(library, pool, logits, params)
    library.lib.kt_pool_free(pool)


@pytest.fixture(scope="module", params=[None, "avx2"], ids=str)
def sample(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    with sampler(request.param) as sample:
        yield sample


@pytest.fixture(scope="module")
def samplers() -> Iterator[dict[str, Sampler]]:
    """Both at once, for tests whose reference takes longer than the sampling."""
    with sampler(None) as best, sampler("avx2") as avx2:
        yield {"best": best, "avx2": avx2}


def falling() -> F32:
    """As in a real vocabulary: the first ids are the most frequent."""
    return np.float32(8) / (1 + np.arange(VOCAB, dtype=np.float32) / 1000) + noise()


def noise() -> F32:
    return random_logits(VOCAB, 1.0, seed=1)


def with_outlier(height: float) -> F32:
    row = noise()
    row[100_001] += np.float32(height)
    return row


def all_but(kept: list[int]) -> F32:
    row = np.full(VOCAB, -np.inf, np.float32)
    row[kept] = [0.5 * i for i in range(len(kept))]
    return row


def half_forbidden() -> F32:
    row = noise()
    row[::2] = -np.inf
    return row


def seen_first() -> np.ndarray:
    """[VOCAB] what the sampler takes its sample from: 64 runs of 64, evenly spread."""
    starts = np.arange(64) * (VOCAB // 64) // 64 * 64
    seen = np.zeros(VOCAB, bool)
    seen[(starts[:, None] + np.arange(64)).ravel()] = True
    return seen


def misleading(in_sample: float, elsewhere: float, spread: float = 1.0) -> F32:
    """A sample of it is too high or too low."""
    shift = np.where(seen_first(), in_sample, elsewhere)
    return random_logits(VOCAB, spread, seed=4) + shift.astype(np.float32)


ROWS: dict[str, Callable[[], F32]] = {
    "wide": noise,
    "falling": falling,
    "rising": lambda: falling()[::-1].copy(),
    "sorted": lambda: np.sort(random_logits(VOCAB, 3.0, seed=2)),
    "heavy": lambda: random_logits(VOCAB, 6.0, seed=3),
    "two humps": lambda: noise() + np.float32(9) * (np.arange(VOCAB) % 500 == 77),
    "one likely": lambda: with_outlier(14.0),
    "one far": lambda: with_outlier(1000.0),
    "few": lambda: all_but([3, 70_000, 100_001, VOCAB - 1]),
    "one": lambda: all_but([100_001]),
    "half": half_forbidden,
    "deep": lambda: noise() - np.float32(5000),
    "sample too high": lambda: misleading(4.0, 0.0),
    "sample too low": lambda: misleading(0.0, 4.0),
    "sample far too low": lambda: misleading(-200.0, 0.0),
    "heavy sample too high": lambda: misleading(8.0, 0.0, spread=4.0),
    "heavy sample too low": lambda: misleading(0.0, 8.0, spread=4.0),
    "nothing in the sample": lambda: misleading(-np.inf, 0.0),
    "nothing but the sample": lambda: misleading(0.0, -np.inf),
}
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.5},
    {"top_p": 0.05},
    {"top_p": 0.999, "temperature": 0.6},
    {"top_p": 0.9, "temperature": 0.05},
    {"top_p": 0.9, "temperature": 50.0},
    {"min_p": 0.06},  # from its border every row's tokens are 8e-6 away or more
    {"top_p": 0.8, "min_p": 0.3},
    {"top_p": 0.8, "min_p": 1e-6},
    {"top_k": 2},
    {"top_k": 64, "top_p": 0.95},
    {"top_k": 100_000, "top_p": 0.7},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("row", ROWS)
def test_every_draw_is_the_formulas(
    samplers: dict[str, Sampler], row: str, filters: dict[str, Any]
) -> None:
    """The number falls into the drawn token's share of the cumulative distribution. float32
    weights may move the nucleus' border by a token, and shares by a millionth.
    """
    logits = ROWS[row]()
    params = [make(**filters, seed=5, position=i) for i in range(6)]
    cumulative = np.cumsum(probabilities(logits, params[0]))
    slack = 1e-5
    for variant, sample in samplers.items():
        for got, p in zip(sample(np.tile(logits, (6, 1)), params), params, strict=True):
            number = uniform(p.seed, p.position)
            assert cumulative[got.token] + slack > number, variant
            assert number > (cumulative[got.token - 1] if got.token else 0) - slack, variant


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.999])
def test_of_equal_logits_the_first_are_kept(sample: Sampler, top_p: float) -> None:
    vocab = 151936
    params = [make(top_p=top_p, position=i) for i in range(32)]
    tokens = [s.token for s in sample(np.zeros((32, vocab), np.float32), params)]
    assert max(tokens) < math.ceil(top_p * vocab)
    assert max(tokens) > 0.8 * top_p * vocab and min(tokens) < 0.2 * top_p * vocab


@pytest.mark.parametrize("filters", [{"top_p": 0.3}, {"top_p": 0.97}, {"top_k": 5000}])
@pytest.mark.parametrize("levels", [2, 3, 50, 1 << 20])
def test_few_distinct_logits_give_the_oracles_tokens(
    sample: Sampler, levels: int, filters: dict[str, float]
) -> None:
    rng = np.random.default_rng(levels)
    logits = rng.integers(0, levels, (8, 20000)).astype(np.float32) * np.float32(3 / levels)
    params = [make(**filters, position=i) for i in range(8)]
    for got, row, p in zip(sample(logits, params), logits, params, strict=True):
        assert probabilities(row, p)[got.token] > 0


def test_a_weight_is_right_to_two_bits(sample: Sampler) -> None:
    """A row of one logit has the probability 1; what is reported is how far its weight is off."""
    logits = np.random.default_rng(6).uniform(-30, 30, 20_000).astype(np.float32)
    logits[:100] *= 1e6  # and far ones
    params = [make(given=0, n_logprobs=0)] * len(logits)
    off = np.array([s.logprob for s in sample(logits[:, None], params)], np.float64)
    assert 0 < np.abs(off).max() < 2.5e-7


@pytest.mark.parametrize("below", [0.1, 1.0, 3.3, 10.0, 40.0, 80.0])
def test_small_weights_are_right(sample: Sampler, below: float) -> None:
    """One logit is higher than all others by `below`. The mass is 1 and theirs."""
    depths = np.linspace(below, below + 1, 50, dtype=np.float32)
    rows: F32 = np.repeat(-depths[:, None], 30_000, axis=1)
    rows[:, 777] = 0
    expected = -np.log1p((rows.shape[1] - 1) * np.exp(rows[:, 0].astype(np.float64)))
    got = [s.logprob for s in sample(rows, [make(given=777, n_logprobs=0)] * len(rows))]
    assert got == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [300, VOCAB])
def test_nan_is_never_drawn(sample: Sampler, vocab: int, filters: dict[str, Any]) -> None:
    """NaN of either sign counts as -infinity."""
    forbidden = random_logits(vocab, 3.0, seed=12)
    forbidden[::3] = -np.inf
    bits = forbidden.copy().view(np.uint32)
    bits[::3], bits[::6] = 0x7FC00000, 0xFFC00000
    params = [make(**filters, position=i) for i in range(4)]
    drawn = [
        [s.token for s in sample(np.tile(row, (4, 1)), params)]
        for row in (forbidden, bits.view(np.float32))
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("n_logprobs", [-1, 0])
@pytest.mark.parametrize("vocab", [64 * 500, 64 * 500 + 1])
def test_reported_probabilities_do_not_change_the_draw(
    sample: Sampler, vocab: int, n_logprobs: int
) -> None:
    """Rows whose logits must stay are weighed elsewhere, and odd ones too."""
    logits = np.stack([random_logits(vocab, 2.0, seed=i) for i in range(8)])
    params = [make(top_p=0.9, min_p=0.001, position=i, n_logprobs=n_logprobs) for i in range(8)]
    for got, row, p in zip(sample(logits, params), logits, params, strict=True):
        assert probabilities(row, p)[got.token] > 0
        plain = sample(row, [make(top_p=0.9, min_p=0.001, position=p.position)])[0]
        assert got.token == plain.token
