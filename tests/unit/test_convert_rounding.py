"""4-bit rounding by search and FP8 rounding: against the best that exists, and another library."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt.kernels.library import Source, load
from tests.native.harness import RUNNABLE, aligned, pool_of

K = 384
FOUR_BITS = [f"I4_G{group}{m}" for m in ("", "M") for group in (32, 64, 128)]


def rounded(
    values: np.ndarray,
    packed_format: str,
    *,
    search: bool = True,
    importance: np.ndarray | None = None,
    variant: str = "avx2",
    threads: int = 1,
) -> tuple[np.ndarray, bytes]:
    """(values after rounding, packed bytes)."""
    library, (n, k) = load(variant), values.shape
    packed = aligned(library.lib.kt_packed_bytes(library.format(packed_format), n, k), fill=0xA5)
    target, pool = library.ffi.from_buffer(packed), pool_of(variant, threads)
    source = Source(values, 0, 4 * k, search=search, importance=importance)
    library.pack(pool, packed_format, (n, k), source, target)
    result = np.empty((n, k), np.float32)
    library.unpack(pool, packed_format, (n, k), target, result)
    return result, packed.tobytes()


def weights(kind: str, n: int = 48, k: int = K) -> np.ndarray:
    rng = np.random.default_rng(11)
    drawn = rng.standard_normal((n, k)) if kind == "normal" else rng.standard_t(4, (n, k))
    return (0.02 * drawn).astype(np.float32)


def errors(
    values: np.ndarray, got: np.ndarray, weight: np.ndarray | float = 1.0, group: int = 32
) -> np.ndarray:
    """Sum of squares of every group."""
    squares = weight * np.square(values.astype(np.float64) - got)
    return squares.reshape(len(values), -1, group).sum(-1)


def best_scale_errors(values: np.ndarray, group: int) -> np.ndarray:
    """The least sum of squares of codes -8 .. 7 with one scale: a fine grid, each point refined."""
    groups = values.reshape(-1, group).astype(np.float64)
    peak = groups[np.arange(len(groups)), np.abs(groups).argmax(1)]
    best = np.full(len(groups), np.inf)
    for at in np.concatenate([np.linspace(4, 14, 200), np.linspace(-14, -4, 200)]):
        inverse = at / peak
        for _ in range(3):
            codes = np.clip(np.round(groups * inverse[:, None]), -8, 7)
            scale = (codes * groups).sum(1) / np.square(codes).sum(1)
            inverse = 1 / scale
        best = np.minimum(best, np.square(groups - scale[:, None] * codes).sum(1))
    return best.reshape(len(values), -1)


@pytest.mark.parametrize("kind", ["normal", "heavy"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_search_finds_nearly_the_best_scale(kind, group):
    values = weights(kind)
    found = errors(values, rounded(values, f"I4_G{group}")[0]).sum()
    best = best_scale_errors(values, group).sum()
    assert best * 0.999 < found < best * 1.002


@pytest.mark.parametrize(
    ("packed_format", "kind", "gain"),
    [
        ("I4_G32", "normal", 0.90),
        ("I4_G32", "heavy", 0.94),
        ("I4_G32M", "normal", 0.85),
        ("I4_G32M", "heavy", 0.85),
        ("I4_G128", "normal", 0.90),
        ("I4_G128", "heavy", 0.94),
        ("I4_G128M", "normal", 0.88),
        ("I4_G128M", "heavy", 0.88),
    ],
)
def test_the_search_is_better_than_rounding_to_nearest(packed_format, kind, gain):
    values = weights(kind)
    group = int(packed_format.split("_G")[1].rstrip("M"))
    plain = errors(values, rounded(values, packed_format, search=False)[0], group=group)
    found = errors(values, rounded(values, packed_format)[0], group=group)
    assert found.sum() < gain * plain.sum()
    assert (found <= plain * 1.0001).all()  # in no group worse


@pytest.mark.parametrize("packed_format", FOUR_BITS)
def test_importance_lowers_the_error_that_counts(packed_format):
    values = weights("normal")
    counts = np.random.default_rng(2).lognormal(0, 1.5, K).astype(np.float32)
    alike = errors(values, rounded(values, packed_format)[0], counts).sum()
    minded = errors(values, rounded(values, packed_format, importance=counts)[0], counts).sum()
    assert minded < 0.95 * alike


@pytest.mark.parametrize("packed_format", [*FOUR_BITS, "F8_G128"])
def test_bytes_do_not_depend_on_variant_or_threads(packed_format):
    values = weights("heavy", 53, 333)
    _, want = rounded(values, packed_format)
    for variant in RUNNABLE:
        for threads in (1, 3):
            assert rounded(values, packed_format, variant=variant, threads=threads)[1] == want


@pytest.mark.parametrize("packed_format", FOUR_BITS)
def test_groups_that_codes_can_hold_come_back_exactly(packed_format):
    codes = np.random.default_rng(5).integers(-8, 8, (20, 256)).astype(np.float32)
    codes[:, ::32], codes[:, 1::32] = -8, 7
    values = codes * np.float32(0.25)
    np.testing.assert_array_equal(rounded(values, packed_format)[0], values)


@pytest.mark.parametrize("packed_format", [*FOUR_BITS, "F8_G128"])
def test_zeros_and_extremes(packed_format):
    values = np.zeros((4, 160), np.float32)
    values[1] = 1e-30
    values[2, 7] = -3.0
    values[3] = 60000.0
    got, _ = rounded(values, packed_format)
    assert np.isfinite(got).all() and not got[0].any()
    assert abs(got[2, 7] + 3) < 0.01 and not got[2, 128:].any()
    np.testing.assert_allclose(got[3], 60000, rtol=0.01)


def test_fp8_is_torchs_rounding_with_a_scale_for_128():
    values = weights("heavy", 30, 300)
    values[0] = 0
    values[1, :128] = np.linspace(-1, 1, 128) * 1e-3
    padded = np.zeros((30, 384), np.float32)
    padded[:, :300] = values
    groups = torch.from_numpy(padded).reshape(30, 3, 128)
    scale = groups.abs().amax(-1, keepdim=True) / 448
    inverse = torch.where(scale > 0, 1 / scale, 0)
    codes = (groups * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
    want = (codes.float() * scale).reshape(30, 384)[:, :300].numpy()
    np.testing.assert_array_equal(rounded(values, "F8_G128")[0], want)
