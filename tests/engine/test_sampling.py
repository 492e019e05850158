"""The native sampler against formulas in float64 and against Philox's published test vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kt.engine.batch import F32, U32, Sampled, SampleParams
from kt.kernels import library as kernels
from kt.kernels.variants import select
from kt.machine.survey import survey
from tests.engine.native_sampling import call, make, random_logits
from tests.sampling_oracle import (
    adjusted,
    log_softmax,
    philox4x32,
    probabilities,
    uniform,
)

Sampler = Callable[[F32, list[SampleParams]], list[Sampled]]


@pytest.fixture(scope="module", params=[(None, 1), (None, 2), ("avx2", 2)], ids=str)
def sample(request: pytest.FixtureRequest) -> Iterator[Sampler]:
    """The sampler of the best variant or a named one, on one or two threads."""
    variant, threads = request.param
    library = kernels.load(select(survey(gpus=False).cpu, variant).value.name)
    pool = library.lib.kt_pool_new(threads, library.ffi.NULL)
    yield lambda logits, params: call(library, pool, logits, params)
    library.lib.kt_pool_free(pool)


def draws(sample: Sampler, logits: F32, count: int, **changes: Any) -> np.ndarray:
    """Ids of `count` draws at positions 0, 1, ... of one seed."""
    tokens: list[int] = []
    for first in range(0, count, 32):  # a few large rows at a time
        params = [make(position=i, **changes) for i in range(first, min(first + 32, count))]
        tokens += [s.token for s in sample(np.tile(logits, (len(params), 1)), params)]
    return np.array(tokens)


# ---- random numbers

# Known answers of philox4x32-10 in Random123's kat_vectors: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize("counter, key, expected", KNOWN_ANSWERS)
def test_this_philox_gives_the_known_answers(counter: str, key: str, expected: str) -> None:
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, expected)]
    assert philox4x32(words[0], words[1]) == words[2]


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF, 1 << 32, 0x299F31D0A4093822, (1 << 64) - 1])
@pytest.mark.parametrize("position", [0, 1, 77, (1 << 32) + 5, (1 << 64) - 1])
def test_draw_is_the_first_two_philox_words(sample: Sampler, seed: int, position: int) -> None:
    """65536 equal logits: the id is the top 16 bits of the uniform number."""
    counter = [position & 0xFFFFFFFF, position >> 32, 0, 0]
    expected = philox4x32(counter, [seed & 0xFFFFFFFF, seed >> 32])[0] >> 16
    [got] = sample(np.zeros(65536, np.float32), [make(seed=seed, position=position)])
    assert got.token == expected


def test_numpy_draws_the_same_token_from_the_same_number(sample: Sampler) -> None:
    logits = random_logits(5000, 3.0, seed=5)
    cumulative = np.cumsum(probabilities(logits, make()))
    got = draws(sample, logits, 300, seed=9)
    for position, token in enumerate(got.tolist()):
        number = uniform(9, position)
        assert cumulative[token] + 1e-6 > number > (cumulative[token - 1] if token else 0) - 1e-6


# ---- greedy


@pytest.mark.parametrize("vocab", [1, 7, 8, 33, 49152, 150001])
def test_greedy_takes_the_lowest_index_of_the_maximum(sample: Sampler, vocab: int) -> None:
    logits = np.minimum(random_logits(vocab, 1.0, seed=vocab), 1.0)
    assert sample(logits, [make(temperature=0.0)])[0].token == int(np.argmax(logits))
    logits[-1] = 5.0
    assert sample(logits, [make(temperature=0.0)])[0].token == vocab - 1


def test_tiny_temperatures_are_greedy(sample: Sampler) -> None:
    logits = random_logits(1000, 1.0, seed=3)
    for temperature in (1e-38, 1e-6, 1e-4):
        assert sample(logits, [make(temperature=temperature)])[0].token == int(np.argmax(logits))


# ---- filters

FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 0.01},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 100, "top_p": 0.5},
    {"top_k": 100, "top_p": 0.95, "min_p": 0.2},
    {"top_k": 3, "top_p": 0.999, "temperature": 5.0},
    {"top_p": 0.6, "temperature": 0.3},
]


@pytest.mark.parametrize("changes", FILTERS, ids=str)
def test_draws_follow_the_distribution(sample: Sampler, changes: dict[str, Any]) -> None:
    """Chi-square over 4000 draws of a fixed seed; nothing outside the support is ever drawn."""
    logits = random_logits(300, 1.5, seed=11)
    expected = probabilities(logits, make(**changes))
    count = 4000
    observed = np.bincount(draws(sample, logits, count, seed=123, **changes), minlength=300)
    assert observed[expected == 0].sum() == 0
    frequent = expected * count >= 5
    tail_expected = max(count * (1 - expected[frequent].sum()), 1e-9)
    tail_observed = count - observed[frequent].sum()
    parts = (observed[frequent] - count * expected[frequent]) ** 2 / (count * expected[frequent])
    chi = parts.sum() + (tail_observed - tail_expected) ** 2 / max(tail_expected, 5.0)
    degrees = int(frequent.sum())
    assert chi < degrees + 4 * math.sqrt(2 * degrees) + 4


@pytest.mark.parametrize("vocab", [1000, 49152, 150000])
@pytest.mark.parametrize("spread", [0.0, 0.001, 1.0, 4.0])
def test_top_k_keeps_exactly_k(sample: Sampler, vocab: int, spread: float) -> None:
    """Flat, nearly flat and peaked rows; equal logits are kept lowest index first."""
    logits = random_logits(vocab, spread, seed=vocab)
    for top_k in (2, 5):
        kept = np.lexsort((np.arange(vocab), -logits.astype(np.float64)))[:top_k]
        got = draws(sample, logits, 60, top_k=top_k, temperature=50.0)
        assert set(got.tolist()) == set(kept.tolist())


def test_top_k_cuts_through_equal_logits(sample: Sampler) -> None:
    logits = np.zeros(3000, np.float32)
    logits[[100, 2000]] = 1.0
    got = draws(sample, logits, 200, top_k=4, temperature=10.0)
    assert set(got.tolist()) == {0, 1, 100, 2000}


@pytest.mark.parametrize("vocab", [300, 49152, 150000])
def test_top_p_keeps_the_shortest_start(sample: Sampler, vocab: int) -> None:
    """Four tokens of weight 4, 3, 2, 1 (tenths) and a negligible rest."""
    logits = np.full(vocab, -30.0, np.float32)
    where = [vocab - 1, 17, vocab // 2, 250]
    logits[where] = np.log([0.4, 0.3, 0.2, 0.1])
    for top_p, n in ((0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.89, 3), (0.91, 4)):
        assert set(draws(sample, logits, 150, top_p=top_p).tolist()) == set(where[:n])
    # top-p measures what top-k left: of 0.4 and 0.3 the first alone is 0.571.
    assert set(draws(sample, logits, 100, top_k=2, top_p=0.57).tolist()) == {where[0]}
    assert set(draws(sample, logits, 100, top_k=2, top_p=0.58).tolist()) == set(where[:2])
    # min-p is relative to the best.
    for min_p, n in ((0.76, 1), (0.74, 2), (0.51, 2), (0.49, 3), (0.26, 3), (0.24, 4)):
        assert set(draws(sample, logits, 150, min_p=min_p).tolist()) == set(where[:n])


def test_top_p_of_a_flat_row_keeps_the_right_half(sample: Sampler) -> None:
    """The nucleus of 100,000 equal logits at 0.5 is the first 50,000."""
    got = draws(sample, np.zeros(100_000, np.float32), 400, top_p=0.5)
    assert got.max() < 50_000 and got.max() > 49_000 and got.min() < 1000


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_top_p_of_a_wide_row_has_the_right_border(sample: Sampler, spread: float) -> None:
    logits = random_logits(50_000, spread, seed=8)
    p = make(top_p=0.8)
    expected = probabilities(logits, p)
    got = draws(sample, logits, 300, top_p=0.8)
    order = np.argsort(-logits)
    border = int((expected > 0).sum())
    allowed = set(order[: border + 2].tolist())  # rounding may move the border by a token
    assert set(got.tolist()) <= allowed
    mean_rank = np.argsort(order)[got].mean() / border
    weighted = (np.arange(border) * expected[order[:border]]).sum() / border
    assert abs(mean_rank - weighted) < 0.06


def test_filters_reach_far_below_the_best(sample: Sampler) -> None:
    """Token 7 weighs 1, each of the others 2^-17; they are kept lowest index first."""
    vocab, far = 150_000, 2.0**-17
    logits = np.full(vocab, math.log(far), np.float32)
    logits[7] = 0.0
    got = draws(sample, logits, 150, top_k=100_000)
    assert abs((got == 7).mean() - 1 / (1 + 99_999 * far)) < 0.15
    assert got.max() < 100_000 and got.max() > 90_000
    got = draws(sample, logits, 150, top_p=0.9)
    border = (0.9 * (1 + (vocab - 1) * far) - 1) / far
    assert border * 0.9 < got.max() < border + 2


def test_a_row_without_a_best_gives_a_valid_id(sample: Sampler) -> None:
    for value in (-np.inf, np.nan):
        [got] = sample(np.full(100, value, np.float32), [make()])
        assert got.token == 0


def test_minus_infinity_is_never_drawn(sample: Sampler) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 900]] = 0.0
    for changes in (
        {},
        {"top_k": 5},
        {"top_p": 0.999},
        {"min_p": 0.01},
        {"top_k": 50, "top_p": 0.9},
    ):
        assert set(draws(sample, logits, 50, **changes).tolist()) == {3, 900}


# ---- bias and penalties


def test_penalties_and_bias_match_the_formulas(sample: Sampler) -> None:
    rng = np.random.default_rng(2)
    for seed in range(40):
        logits = random_logits(200, 2.0, seed=seed)
        history = rng.integers(0, 200, 60).astype(np.int32)
        p = make(
            temperature=0.0,
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.7])),
            presence_penalty=float(rng.choice([0.0, 0.9, -1.5])),
            frequency_penalty=float(rng.choice([0.0, 0.6, -0.4])),
            n_prompt=int(rng.integers(0, 61)),
            history=history,
            bias=tuple((int(i), float(rng.normal(0, 4))) for i in rng.integers(0, 200, 5)),
        )
        assert sample(logits, [p])[0].token == int(np.argmax(adjusted(logits, p)))


def test_each_penalty_covers_what_it_should(sample: Sampler) -> None:
    """Token 1 is in the prompt, token 2 twice in the output, token 3 nowhere."""
    history = np.array([1, 2, 2], np.int32)
    base = np.array([-9.0, 2.0, 2.0, 1.9], np.float32)

    def best(logits: F32, **changes: Any) -> int:
        params = make(temperature=0.0, n_prompt=1, history=history, **changes)
        return sample(logits, [params])[0].token

    assert best(base) == 1
    assert best(base, repetition_penalty=1.1) == 3
    assert best(base, presence_penalty=0.2) == 1
    assert best(base - np.float32([0, 1, 0, 0]), presence_penalty=0.2) == 3
    one_off = base - np.float32([0, 1, 0, 0])
    assert best(one_off, frequency_penalty=0.04) == 2  # 2 - 2 * 0.04 > 1.9
    assert best(one_off, frequency_penalty=0.06) == 3
    negative = np.array([-9.0, -2.0, -2.5, -2.1], np.float32)
    assert best(negative, repetition_penalty=1.1) == 3  # -2 becomes -2.2


def test_a_banned_token_is_not_drawn(sample: Sampler) -> None:
    logits = np.array([9.0, 1.0, 1.0], np.float32)
    got = draws(sample, logits, 50, bias=((0, -math.inf),))
    assert set(got.tolist()) == {1, 2}


# ---- log probabilities


@pytest.mark.parametrize("vocab", [5, 1000, 49152, 150000])
def test_logprobs_are_of_the_raw_distribution(sample: Sampler, vocab: int) -> None:
    logits = random_logits(vocab, 3.0, seed=vocab)
    n = min(20, vocab)
    best_id = int(np.argmax(logits))
    p = make(
        temperature=0.7,
        top_k=50,
        n_logprobs=n,
        repetition_penalty=1.5,
        history=np.array([best_id, best_id], np.int32),
        n_prompt=1,
        presence_penalty=0.5,
        bias=((best_id, 2.0), ((best_id + 1) % vocab, -1.0)),
    )
    expected = log_softmax(logits)
    order = np.lexsort((np.arange(vocab), -logits.astype(np.float64)))[:n]
    for seed in range(5):
        [got] = sample(logits, [make(**{**vars(p), "seed": seed})])
        assert got.logprob == pytest.approx(expected[got.token], abs=1e-5)
        assert [i for i, _ in got.best] == order.tolist()
        assert [v for _, v in got.best] == pytest.approx(expected[order].tolist(), abs=1e-5)


def test_best_of_equal_logits_are_the_lowest_ids(sample: Sampler) -> None:
    [got] = sample(np.zeros(500, np.float32), [make(n_logprobs=4)])
    assert got.best == tuple((i, pytest.approx(-math.log(500), abs=1e-5)) for i in range(4))


# ---- neighbours


def test_a_row_does_not_depend_on_its_neighbours(sample: Sampler) -> None:
    """Rows with everything switched on, together and alone."""
    params = [
        make(
            temperature=0.5 + i / 8,
            top_k=[0, 30][i % 2],
            top_p=[1.0, 0.8, 0.95][i % 3],
            min_p=[0.0, 0.02][i % 2],
            seed=i,
            position=3 * i,
            n_logprobs=[-1, 0, 5][i % 3],
            frequency_penalty=[0.0, 0.3][i % 2],
            history=np.arange(i, dtype=np.int32),
        )
        for i in range(16)
    ]
    logits = np.stack([random_logits(3001, 2.0, seed=100 + i) for i in range(16)])
    together = sample(logits, params)
    alone = [sample(logits[i], [params[i]])[0] for i in range(16)]
    assert together == alone


# ---- masks and given tokens


def mask_of(allowed: np.ndarray) -> U32:
    bits = np.zeros(-(-len(allowed) // 32) * 32, np.uint8)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_what_the_mask_allows_is_drawn(
    sample: Sampler, vocab: int, temperature: float
) -> None:
    rng = np.random.default_rng(vocab)
    logits = random_logits(vocab, 2.0, seed=vocab)
    for trial in range(20):
        allowed = rng.random(vocab) < 0.1
        allowed[rng.integers(vocab)] = True
        params = make(
            temperature=temperature, mask=mask_of(allowed), position=trial, top_p=0.9, n_logprobs=1
        )
        [got] = sample(logits, [params])
        assert allowed[got.token]
        expected = probabilities(logits, params)
        assert expected[got.token] > 0
        if temperature == 0:
            assert got.token == int(np.argmax(expected))
        assert got.logprob == pytest.approx(log_softmax(logits)[got.token], abs=1e-5)


def test_a_masked_draw_has_the_masked_distribution(sample: Sampler) -> None:
    logits = random_logits(64, 1.0, seed=3)
    allowed = np.arange(64) % 3 == 1
    mask = mask_of(allowed)
    got = np.bincount(draws(sample, logits, 4000, mask=mask), minlength=64) / 4000
    expected = np.where(allowed, np.exp(logits), 0)
    expected /= expected.sum()
    assert np.abs(got - expected).max() < 0.03  # 4 standard deviations of the likeliest


def test_a_given_token_is_not_drawn_but_reported(sample: Sampler) -> None:
    logits = random_logits(500, 2.0, seed=8)
    [got] = sample(logits, [make(given=77, n_logprobs=2, bias=((77, 50.0),))])
    expected = log_softmax(logits)
    assert (got.token, len(got.best)) == (77, 2)
    assert got.logprob == pytest.approx(expected[77], abs=1e-5)
    assert got.best[0][0] == int(np.argmax(expected))
