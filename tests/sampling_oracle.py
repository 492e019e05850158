"""Sampling in numpy float64, written from the definitions; the oracle of the native sampler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kt.engine.batch import F32, SampleParams

F64 = npt.NDArray[np.float64]


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 of Salmon, Moraes, Dror and Shaw (SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed: int, position: int) -> float:
    """What the native sampler draws with: in [0, 1), 53 bits."""
    counter = [position & 0xFFFFFFFF, position >> 32, 0, 0]
    words = philox4x32(counter, [seed & 0xFFFFFFFF, seed >> 32])
    return float(((words[0] << 32 | words[1]) >> 11) * 2.0**-53)


def log_softmax(logits: F32) -> F64:
    x = logits.astype(np.float64)
    x = x - x.max()
    return np.asarray(x - np.log(np.exp(x).sum()), np.float64)


def adjusted(logits: F32, p: SampleParams) -> F64:
    """Logits after mask, bias and penalties."""
    x = logits.astype(np.float64)
    if p.mask is not None:
        allowed = np.unpackbits(p.mask.view(np.uint8), bitorder="little", count=len(x))
        x[allowed == 0] = -np.inf
    for token, bias in p.bias:
        x[token] += bias
    seen = np.unique(p.history)
    x[seen] = np.where(x[seen] > 0, x[seen] / p.repetition_penalty, x[seen] * p.repetition_penalty)
    output, counts = np.unique(p.history[p.n_prompt :], return_counts=True)
    x[output] -= p.presence_penalty + p.frequency_penalty * counts
    return x


def probabilities(logits: F32, p: SampleParams) -> F64:
    """The distribution a draw comes from: temperature, then top-k, top-p, min-p, renormalised."""
    x = adjusted(logits, p)
    if p.temperature == 0:
        return np.asarray(np.arange(len(x)) == int(np.argmax(x)), np.float64)
    x = (x - x.max()) / p.temperature
    order = np.lexsort((np.arange(len(x)), -x))  # best first, lowest index first among equals
    weights = np.exp(x[order])
    if p.top_k:
        weights[p.top_k :] = 0
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    weights[before >= p.top_p] = 0  # the smallest set whose probabilities reach top_p
    weights[weights < p.min_p * weights[0]] = 0
    out = np.zeros_like(weights)
    out[order] = weights / weights.sum()
    return out


def draw(logits: F32, p: SampleParams) -> int:
    """A draw that depends on seed and position alone, or the given id."""
    if p.given >= 0:
        return p.given
    chances = probabilities(logits, p)
    uniform = np.random.Generator(np.random.Philox(key=p.seed, counter=p.position)).random()
    return min(int(np.searchsorted(np.cumsum(chances), uniform, side="right")), len(chances) - 1)
