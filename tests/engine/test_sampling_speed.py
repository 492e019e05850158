"""What sampling costs beside the matrix product that makes its logits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kt.engine.batch import F32
from kt.kernels.library import Library, load
from kt.kernels.variants import select
from kt.machine.survey import survey
from kt.tokenizer import load as load_tokenizer
from kt.weights.checkpoint import open_checkpoint
from tests.engine.native_sampling import Call, make
from tests.executors import ROOT, SMOLLM2, executor, one_sequence
from tests.native.harness import Builder, Packed, normal, pack, packed_random, pool_of

ROWS, HIDDEN, VOCAB, THREADS = 64, 576, 151936, 2
SPREADS = {1.0: "most tokens", 2.0: "a quarter of them", 4.0: "some hundred"}  # top-p 0.9 keeps
FEWEST_ROUNDS, MOST_ROUNDS = 10, 200  # the best count; the more, the less neighbours matter

# At most so much of the product that makes logits of VOCAB tokens, and of SmolLM2's own, which
# makes 49152 and takes a third of the time. Rows of a text are read little faster than weighed:
# their share depends on the memory's speed of the hour.
OF_ITS_PRODUCT, OF_OWN_PRODUCT = 0.15, {"text": 0.37, "random": 0.47}

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def library() -> Library:
    return load(select(survey(gpus=False).cpu, None).value.name)


@pytest.fixture(scope="module")
def text_logits(library: Library) -> F32:
    """[ROWS, VOCAB]: SmolLM2's own at places of a text, each row repeated until it is as long."""
    text = (ROOT / "tests" / "data" / "prose.txt").read_text()
    ids = load_tokenizer(open_checkpoint(SMOLLM2)).encode(text)[: 14 * ROWS]
    model = executor(SMOLLM2, library.name, threads=THREADS)
    rows = model.forward(one_sequence(ids, logits=range(13, len(ids), 14)))
    logits = np.concatenate([rows] * -(-VOCAB // rows.shape[1]), axis=1)[:, :VOCAB].copy()
    model.close()
    assert logits.shape == (ROWS, VOCAB)
    return logits


def own_head(library: Library) -> Packed:
    """SmolLM2's own matrix, as its checkpoint has it."""
    tensor = open_checkpoint(SMOLLM2).tensor("embed")
    n, k = tensor.shape
    assert k == HIDDEN
    rows = np.array(tensor.data).reshape(n, -1)
    return pack(library, tensor.packed_format, rows, source=tensor.encoding.name, k=k)


def product(library: Library, head: Packed) -> Callable[[], Any]:
    """The last operation of a step of ROWS sequences."""
    builder = Builder(library, threads=THREADS)
    builder.embed("x", normal(1, ROWS, HIDDEN))
    builder.norm("x", "normed")
    builder.linear("normed", "logits", [head])
    program = builder.build(ROWS)
    batch, nowhere = program.batch(ROWS), library.ffi.NULL
    return lambda: library.lib.kt_forward(program.native, batch, nowhere)


def sampling(library: Library, logits: F32) -> Callable[[], Any]:
    params = [make(top_p=0.9, seed=i) for i in range(ROWS)]
    return Call(library, pool_of(library.name, THREADS), logits, params).run


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def test_top_p_costs_little_beside_the_logits_product(library: Library, text_logits: F32) -> None:
    """Best of many interleaved rounds. Both matrices are Q8_0."""
    noise = normal(2, ROWS, VOCAB)
    calls = {
        "own product": product(library, own_head(library)),
        "its product": product(library, packed_random(library, "I8_G32", VOCAB, HIDDEN)),
        "text": sampling(library, text_logits),
    }
    calls |= {f"random, {s}": sampling(library, noise * spread) for spread, s in SPREADS.items()}
    best = dict.fromkeys(calls, math.inf)
    for done in range(MOST_ROUNDS):
        best = {name: min(best[name], seconds(call)) for name, call in calls.items()}
        own, its, text, *random = best.values()
        if (
            done >= FEWEST_ROUNDS
            and max(text, *random) < OF_ITS_PRODUCT * its
            and text < OF_OWN_PRODUCT["text"] * own
            and max(random) < OF_OWN_PRODUCT["random"] * own
        ):
            return
    pytest.fail(f"best seconds: {best}")
