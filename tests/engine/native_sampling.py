"""Calls of the native sampler: one kt_sample on arrays that numpy owns."""

from __future__ import annotations

from typing import Any

import numpy as np

from kt.engine.batch import F32, Sampled, SampleParams
from tests.native.harness import aligned

BEST_ROOM = 20  # entries of a row of best_ids


class Call:
    """kt_sample on a copy of the logits, as often as wanted."""

    def __init__(self, library: Any, pool: Any, logits: F32, params: list[SampleParams]) -> None:
        self.library, self.pool, self.params = library, pool, params
        logits = np.atleast_2d(np.asarray(logits, np.float32))
        self.rows = aligned(logits.nbytes).view(np.float32).reshape(logits.shape)
        self.rows[:] = logits
        ffi, n = library.ffi, len(params)
        self.structs, self.alive = ffi.new("kt_sampling[]", n), []
        for struct, p in zip(self.structs, params, strict=True):
            self.alive += fill(ffi, struct, p)
        self.ids, self.best_ids = ffi.new("int32_t[]", n), ffi.new("int32_t[]", n * BEST_ROOM)
        self.chosen, self.best = ffi.new("float[]", n), ffi.new("float[]", n * BEST_ROOM)

    def run(self) -> None:
        status = self.library.lib.kt_sample(
            self.pool,
            self.library.ffi.cast("float *", self.rows.ctypes.data),
            *self.rows.shape,
            self.structs,
            self.ids,
            self.chosen,
            self.best_ids,
            self.best,
        )
        assert status == 0

    def results(self) -> list[Sampled]:
        return [
            Sampled(
                self.ids[r],
                self.chosen[r] if p.n_logprobs >= 0 else None,
                tuple(
                    (self.best_ids[r * BEST_ROOM + i], self.best[r * BEST_ROOM + i])
                    for i in range(max(p.n_logprobs, 0))
                ),
            )
            for r, p in enumerate(self.params)
        ]


def call(library: Any, pool: Any, logits: F32, params: list[SampleParams]) -> list[Sampled]:
    """kt_sample on a copy of the logits."""
    made = Call(library, pool, logits, params)
    made.run()
    return made.results()


def fill(ffi: Any, struct: Any, p: SampleParams) -> list[Any]:
    """The arrays that the struct points to."""
    history = np.ascontiguousarray(p.history, np.int32)
    bias_ids = np.array([i for i, _ in p.bias], np.int32)
    bias_values = np.array([b for _, b in p.bias], np.float32)
    for name in kept_fields(p):
        setattr(struct, name, getattr(p, name))
    struct.n_history, struct.n_bias = len(history), len(bias_ids)
    if p.mask is not None:
        struct.mask = ffi.cast("uint32_t *", p.mask.ctypes.data)
    struct.history = ffi.cast("int32_t *", history.ctypes.data)
    struct.bias_ids = ffi.cast("int32_t *", bias_ids.ctypes.data)
    struct.bias_values = ffi.cast("float *", bias_values.ctypes.data)
    return [history, bias_ids, bias_values]


def kept_fields(p: SampleParams) -> list[str]:
    return [name for name in vars(p) if name not in ("history", "bias", "mask")]


def make(**changes: Any) -> SampleParams:
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n_logprobs": -1,
        "seed": 1,
        "position": 0,
        "n_prompt": 0,
        "history": np.zeros(0, np.int32),
    }
    return SampleParams(**(values | changes))


def random_logits(vocab: int, spread: float, seed: int) -> F32:
    values = np.random.default_rng(seed).normal(0.0, spread, vocab)
    return np.asarray(values, np.float32)
