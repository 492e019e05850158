"""What sampling costs beside the matrix product that makes its logits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from kt.kernels.library import load
from kt.kernels.variants import select
from kt.machine.survey import survey
from tests.engine.native_sampling import Call, make
from tests.native.harness import Builder, normal, packed_random, pool_of

ROWS, HIDDEN, VOCAB, THREADS = 64, 576, 151936, 2
SPREADS = {1.0: "most tokens", 2.0: "a quarter of them", 4.0: "some hundred"}  # top-p 0.9 keeps
FEWEST_ROUNDS, MOST_ROUNDS = 10, 200  # the best count; the more, the less neighbours matter


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


@pytest.mark.slow
def test_top_p_costs_less_than_a_quarter_of_the_logits_product() -> None:
    """SmolLM2's last operation for 64 sequences, with 150k tokens instead of 49k: its matrix is
    Q8_0. Best of many interleaved rounds.
    """
    library = load(select(survey(gpus=False).cpu, None).value.name)
    builder = Builder(library, threads=THREADS)
    builder.embed("x", normal(1, ROWS, HIDDEN))
    builder.norm("x", "normed")
    builder.linear("normed", "logits", [packed_random(library, "I8_G32", VOCAB, HIDDEN)])
    program = builder.build(ROWS)
    batch, nowhere = program.batch(ROWS), library.ffi.NULL
    calls: dict[Any, Callable[[], Any]] = {
        "product": lambda: library.lib.kt_forward(program.native, batch, nowhere)
    }
    pool = pool_of(library.name, THREADS)
    params = [make(top_p=0.9, seed=i) for i in range(ROWS)]
    logits = normal(2, ROWS, VOCAB)
    for spread in SPREADS:
        calls[spread] = Call(library, pool, logits * spread, params).run
    best = [math.inf] * len(calls)
    for done in range(MOST_ROUNDS):
        best = [min(old, seconds(call)) for old, call in zip(best, calls.values(), strict=True)]
        product, *sampling = best
        if done >= FEWEST_ROUNDS and max(sampling) < product / 4:
            return
    pytest.fail(f"the product takes {product:.5f} s, sampling {sampling}")
