"""Bytes and operations of a forward pass, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kt.bench.floors import Floors, Rates
from kt.bench.point import Point
from kt.bench.timing import Timing
from kt.bench.work import ModelWork, Span, combined
from kt.models.spec import (
    AttentionSpec,
    ExpertSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    RopeSpec,
    RouterSpec,
)
from kt.models.tensors import expected_tensors
from kt.placement.budget import KvFormat
from kt.weights.encodings import BY_NAME
from kt.weights.tensor import Tensor

ATTENTION = AttentionSpec(
    n_heads=4, n_kv_heads=2, head_dim=16, scale=0.25, rope=RopeSpec(dims=0, inv_freq=())
)
LAYER = LayerSpec(ATTENTION, ExpertSpec(RouterSpec(n_experts=8, top_k=2), MlpSpec(32)))
SPEC = ModelSpec(
    family="qwen3_moe",
    hidden=64,
    vocab=48,
    context=512,
    norm_eps=1e-6,
    layers=(LAYER,),
    tied_embeddings=False,
)


class Shapes:
    """A checkpoint of which only shapes and encodings are asked: Q8_0 but for the router."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = expected_tensors(spec)

    def tensor(self, role: str) -> Tensor:
        encoding = BY_NAME["BF16" if role.endswith("router") else "Q8_0"]
        return Tensor(role, self._shapes[role], encoding, np.empty(0, np.uint8))

    def experts(self, layer: int, part: str) -> list[Tensor]:
        shape = (64, 32) if part == "down" else (32, 64)
        return [Tensor(part, shape, BY_NAME["Q8_0"], np.empty(0, np.uint8))] * 8


def work(spec: ModelSpec = SPEC, kv_format: KvFormat = "bf16") -> ModelWork:
    return ModelWork(spec, Shapes(spec), kv_format)  # type: ignore[arg-type]


# A panel of 16 rows of 64 columns in I8_G32: 16 * 64 codes and two scales of 2 bytes a row.
PANEL = 16 * 64 + 2 * 2 * 16
DENSE = (4 + 2 + 2 + 4) * PANEL + 16 * 64 * 4  # q k v o, and the float32 router (one panel)
EXPERT = 2 * 2 * PANEL + 4 * 576  # gate, up of 2 panels; down of 4: 544 bytes, to 64 rounded up
HEAD = 3 * PANEL
POSITION = 2 * 2 * 32 * 2  # KV heads, key and value, 16 dims padded to 32, bfloat16


def test_one_decoded_token() -> None:
    step = work().step([Span(first=100, count=1)], logits=1)
    assert {name: part.nbytes for name, part in step.parts.items()} == {
        "dense": DENSE,
        "experts": 2 * EXPERT,
        "head": HEAD,
        "attention": 101 * POSITION,
    }
    assert (DENSE, EXPERT, HEAD, POSITION) == (17152, 6656, 3264, 256)
    matrices = 2 * (64 * 64 * 2 + 32 * 64 * 2) + 2 * (2 * 3 * 64 * 32) + 2 * 48 * 64
    assert step.total.operations == {
        "dot_int8": matrices,
        "fma_f32": 2 * 8 * 64,
        "dot_bf16": 101 * 4 * 16 * 4,
    }
    assert step.total.nbytes == 17152 + 2 * 6656 + 3264 + 101 * 256


def test_weights_are_read_once_for_a_batch_and_experts_as_often_as_chosen() -> None:
    step = work().step([Span(first=9, count=1)] * 3, logits=3)
    assert step.parts["dense"].nbytes == DENSE
    assert step.parts["head"].nbytes == HEAD
    # 8 experts, each missed by a token with probability 3/4.
    assert step.parts["experts"].nbytes == pytest.approx(8 * (1 - 0.75**3) * EXPERT)
    assert step.parts["experts"].operations == {"dot_int8": 3 * 2 * (2 * 3 * 64 * 32)}
    assert step.parts["attention"].nbytes == 3 * 10 * POSITION


def test_prefill_sees_a_triangle_of_keys() -> None:
    step = work().step([Span(first=0, count=4)], logits=1)
    assert step.parts["attention"].nbytes == 4 * POSITION
    assert step.parts["attention"].operations == {"dot_bf16": (1 + 2 + 3 + 4) * 4 * 16 * 4}
    assert step.parts["head"].operations == {"dot_int8": 2 * 48 * 64}
    assert step.parts["dense"].operations["fma_f32"] == 4 * 2 * 8 * 64


def test_int8_keys_and_values_are_half_the_bytes_and_other_operations() -> None:
    attended = work(kv_format="int8").step([Span(0, 4)], 0).parts["attention"]
    # 2 KV heads of 32 dims (16, padded): a byte each; a float16 a key, rounded up; a float32.
    assert attended.nbytes == 4 * 2 * (2 * 32 + 4 + 4)
    assert attended.operations == {"dot_int8": (1 + 2 + 3 + 4) * 4 * 16 * 6}


def test_a_pass_without_logits_has_no_head() -> None:
    assert "head" not in work().step([Span(first=0, count=4)], logits=0).parts


def test_two_passes_read_the_weights_twice() -> None:
    one = work().step([Span(first=0, count=2)], logits=0)
    two = work().step([Span(first=2, count=2)], logits=1)
    both = combined([one, two])
    assert both.parts["dense"].nbytes == 2 * DENSE
    assert both.total.operations["dot_bf16"] == (1 + 2 + 3 + 4) * 4 * 16 * 4
    assert one.parts["dense"].nbytes == DENSE


def test_a_window_bounds_what_is_seen() -> None:
    windowed = dataclasses.replace(ATTENTION, window=3)
    layer = dataclasses.replace(LAYER, attention=windowed)
    counted = work(dataclasses.replace(SPEC, layers=(layer,)))
    step = counted.step([Span(first=10, count=2)], logits=1)
    assert step.parts["attention"].nbytes == 4 * POSITION  # positions 8 to 11
    assert step.parts["attention"].operations == {"dot_bf16": 2 * 3 * 4 * 16 * 4}


def test_tied_embeddings_are_the_head() -> None:
    tied = work(dataclasses.replace(SPEC, tied_embeddings=True))
    assert tied.step([Span(0, 1)], logits=1).parts["head"].nbytes == HEAD


def test_fractions_of_the_floors() -> None:
    before = Rates(read=8e9, peaks={"dot_int8": 100e9, "fma_f32": 10e9})
    after = Rates(read=12e9, peaks={"dot_int8": 300e9, "fma_f32": 30e9})
    timing = Timing((0.4, 0.1, 0.2))
    point = Point(timing, 1e9, {"dot_int8": 4e9, "fma_f32": 2e9}, Floors(before, after))
    assert point.bandwidth_seconds == pytest.approx(0.1)  # 1 GB at the mean, 10 GB/s
    assert point.arithmetic_seconds == pytest.approx(4e9 / 200e9 + 2e9 / 20e9)
    assert point.median == pytest.approx((0.5, 0.6, 0.6))
    assert point.best == pytest.approx((1.0, 1.2, 1.2))


def test_time_without_a_part() -> None:
    rest = Timing((0.1, 0.3, 0.2))
    assert Timing((1.0, 0.5, 0.1)).less(rest).seconds == pytest.approx((0.8, 0.3, 0.0))
