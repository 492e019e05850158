"""Calls of the native sampler: one kt_sample on arrays that numpy owns."""

from __future__ import annotations

from typing import Any

import numpy as np

from kt.engine.batch import F32, Sampled, SampleParams

BEST_ROOM = 20  # entries of a row of best_ids


def call(library: Any, pool: Any, logits: F32, params: list[SampleParams]) -> list[Sampled]:
    """kt_sample on a copy of the logits."""
    ffi, rows = library.ffi, np.array(logits, np.float32, ndmin=2)
    structs = ffi.new("kt_sampling[]", len(params))
    alive = []
    for struct, p in zip(structs, params, strict=True):
        history = np.ascontiguousarray(p.history, np.int32)
        bias_ids = np.array([i for i, _ in p.bias], np.int32)
        bias_values = np.array([b for _, b in p.bias], np.float32)
        alive += [history, bias_ids, bias_values]
        for name in kept_fields(p):
            setattr(struct, name, getattr(p, name))
        struct.n_history, struct.n_bias = len(history), len(bias_ids)
        if p.mask is not None:
            struct.mask = ffi.cast("uint32_t *", p.mask.ctypes.data)
        struct.history = ffi.cast("int32_t *", history.ctypes.data)
        struct.bias_ids = ffi.cast("int32_t *", bias_ids.ctypes.data)
        struct.bias_values = ffi.cast("float *", bias_values.ctypes.data)
    n = len(params)
    ids, best_ids = ffi.new("int32_t[]", n), ffi.new("int32_t[]", n * BEST_ROOM)
    chosen, best = ffi.new("float[]", n), ffi.new("float[]", n * BEST_ROOM)
    data = ffi.cast("float *", rows.ctypes.data)
    status = library.lib.kt_sample(
        pool, data, n, rows.shape[1], structs, ids, chosen, best_ids, best
    )
    assert status == 0
    return [
        Sampled(
            ids[r],
            chosen[r] if p.n_logprobs >= 0 else None,
            tuple(
                (best_ids[r * BEST_ROOM + i], best[r * BEST_ROOM + i])
                for i in range(max(p.n_logprobs, 0))
            ),
        )
        for r, p in enumerate(params)
    ]


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
