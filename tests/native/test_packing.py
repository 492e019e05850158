"""Packed weights: every encoding comes back bit for bit, whoever packed it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kt.errors import KtError
from kt.kernels import reference
from kt.kernels.library import load
from tests.native.harness import (
    FORMATS,
    GGUF_FORMATS,
    GROUPED,
    RUNNABLE,
    TYPE_NUMBERS,
    Packed,
    assert_same_bits,
    block_elements,
    normal,
    pack,
    packed_random,
    pool_of,
    source_rows,
    unpack,
)
from tests.tiny import random_blocks

ROUNDED = ("F32", "F16", "BF16", "I8_G32", "I4_G32", "I4_G32M", *GROUPED)
# A GGUF type -> the packed format that holds it; IQ2_S shares one with IQ2_XS.
HOLDERS = {kind: packed for packed, kind in GGUF_FORMATS.items()} | {"IQ2_S": "I3_IQ2"}
ODD_ROWS = (1, 15, 17, 33)


def group_of(packed_format: str) -> int:
    """Columns that share a scale in a format with "_G" in its name."""
    return int(packed_format.split("_G")[1].rstrip("M"))


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("n", ODD_ROWS)
def test_gguf_blocks_come_back_as_the_gguf_package_says(library, kind, n):
    packed_format = HOLDERS[kind]
    for k in (256, 512) if block_elements(kind) == 256 else (32, 96, 256):
        raw = random_blocks(kind, n, k, seed=n + k)
        want = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
        packed = pack(library, packed_format, raw, source=kind, k=k)
        assert_same_bits(unpack(library, packed), np.ascontiguousarray(want))


@pytest.mark.parametrize("kind", HOLDERS)
def test_any_bits_of_a_block_come_back(kind):
    """Scales too are any float16: negative, subnormal, infinite, NaN."""
    library = load("avx2")
    packed_format = HOLDERS[kind]
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.random.default_rng(5).integers(0, 256, (200, 4 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    got = unpack(library, pack(library, packed_format, raw, source=kind, k=4 * elements))
    assert np.isnan(want).any() == (kind != "MXFP4")  # its scales are powers of two
    if kind == "IQ1_S":  # its values are made of a scale and a minimum, and infinity less infinity
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))  # is NaN
        got, want = got[np.isfinite(got)], want[np.isfinite(want)]
    np.testing.assert_array_equal(got, want)  # NaN equals NaN, whatever its payload


@pytest.mark.parametrize("packed_format", ROUNDED)
@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_floats_are_rounded_as_documented(library, packed_format, source):
    for n, k in [(1, 32), (15, 33), (17, 1), (33, 100), (16, 31)]:
        values = torch.from_numpy(normal(n * k, n, k))
        values[0, 0] = 0
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[source]
        stored = values.to(dtype)
        raw = stored.view(torch.uint8).numpy()
        got = unpack(library, pack(library, packed_format, raw, source=source, k=k))
        want = reference.round_weights(stored.float(), packed_format)
        np.testing.assert_array_equal(got, want.numpy())  # but for the sign of zero


@pytest.mark.parametrize("packed_format", ["I8_G32", "I4_G32", "I4_G32M", *GROUPED])
def test_rounding_is_within_half_a_step(packed_format):
    """The formula itself, judged by the largest error that nearest codes may have."""
    values = torch.from_numpy(normal(3, 40, 384))
    kind, group = packed_format[:2], group_of(packed_format)
    blocks = values.reshape(40, -1, group)
    step = blocks.abs().amax(-1) / (127 if kind == "I8" else 8)
    if packed_format.endswith("M"):
        step = (blocks.amax(-1) - blocks.amin(-1)) / 15
    error = (reference.round_weights(values, packed_format) - values).abs().reshape(blocks.shape)
    # The largest value of the other sign may lie a whole step above code 15 of I4_G*.
    limit = 1.01 if kind == "I4" and not packed_format.endswith("M") else 0.51
    assert (error.amax(-1) <= limit * step).all()
    assert error.square().mean().sqrt() < 0.35 * step.mean()


@pytest.mark.parametrize("packed_format", ROUNDED)
def test_rows_of_zeros_and_extremes(library, packed_format):
    values = np.zeros((5, 64), np.float32)
    values[1] = 1e-30  # below any float16 scale
    values[2, 7] = -3.0
    values[3] = 60000.0
    values[4, 32:] = np.linspace(-1, 1, 32, dtype=np.float32)
    got = unpack(library, pack(library, packed_format, values))
    want = reference.round_weights(torch.from_numpy(values), packed_format).numpy()
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, want)
    assert not got[0].any()


def test_nan_and_infinity_survive_in_float_formats(library):
    values = np.array([[np.nan, np.inf, -np.inf, 1e-45, 3.4e38]], np.float32)
    for packed_format in ("F32", "F16", "BF16"):
        got = unpack(library, pack(library, packed_format, values))
        want = reference.round_weights(torch.from_numpy(values), packed_format).numpy()
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_bytes_do_not_depend_on_variant_or_threads(packed_format):
    def packed(name: str, threads: int) -> Packed:
        library = load(name)
        source = GGUF_FORMATS.get(packed_format, "F32")
        rows = random_blocks(source, 205, 512) if source != "F32" else normal(1, 205, 512)
        return pack(library, packed_format, rows, source=source, k=512, threads=threads)

    want = packed("avx2", 1).data
    for name in RUNNABLE:
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(packed(name, threads).data, want)


@pytest.mark.parametrize("packed_format", FORMATS)
def test_unpacking_with_more_threads_gives_the_same(packed_format):
    library = load("avx2")
    packed = packed_random(library, packed_format, 205, 512)
    for threads in (2, 3):
        assert_same_bits(unpack(library, packed, threads=threads), unpack(library, packed))


@pytest.mark.parametrize("packed_format", FORMATS)
def test_packed_bytes(library, packed_format):
    """The sizes that a plan counts with: codes and scales of whole panels of 16 rows."""
    code = 2 * int(packed_format.split("_")[0].lstrip("BFI"))  # of 16 rows, by the format's bits
    per_32 = {"I8_G32": 32, "I5_G32": 32, "I4_G32": 32, "I5_G32M": 64, "I4_G32M": 64}
    per_32 |= {"I4_NL": 32, "F4_MX": 16}
    per_256 = {"I6_K16": 288, "I5_K32M": 320, "I4_K32M": 320, "I4_NLK": 160}
    per_256 |= {"I3_K16": 288, "I2_K16M": 320, "I4_IQ3XXS": 160, "I4_IQ3S": 160, "I3_IQ2XXS": 160}
    per_256 |= {"I3_IQ2": 288, "I3_IQ1M": 288, "I2_IQ1S": 160}
    per_group = {"I8_G64": 32, "I8_G128": 32, "I4_G64": 32, "I4_G128": 32}
    per_group |= {"I4_G64M": 64, "I4_G128M": 64}
    for n, k in [(1, 32), (16, 256), (17, 512), (100, 1024), (33, 2816)]:
        if packed_format in per_256 and k % 256:
            continue
        panel = code * k + per_32.get(packed_format, 0) * k // 32
        panel += per_256.get(packed_format, 0) * k // 256
        if packed_format in per_group:
            panel += per_group[packed_format] * -(
                -k // int(packed_format.split("_G")[1].rstrip("M"))
            )
        panel = -(-panel // 64) * 64
        got = library.lib.kt_packed_bytes(library.format(packed_format), n, k)
        assert got == -(-n // 16) * panel


@pytest.mark.parametrize("packed_format", FORMATS)
def test_packing_writes_its_bytes_and_no_more(library, packed_format):
    number = library.format(packed_format)
    size = library.lib.kt_packed_bytes(number, 3, 256)
    source, target = np.zeros((3, 256 * 4), np.uint8), np.full(size + 64, 0xA5, np.uint8)
    encoding = GGUF_FORMATS.get(packed_format, packed_format)
    rows = source_rows(source, encoding if encoding in TYPE_NUMBERS else "F32", 3)
    library.pack(
        pool_of(library.name, 1), packed_format, (3, 256), rows, library.ffi.from_buffer(target)
    )
    assert (target[size:] == 0xA5).all()
    assert not (target[:size] == 0xA5).any()


def test_combinations_that_do_not_exist_are_refused(library):
    floats, blocks = normal(1, 4, 256), random_blocks("Q4_0", 4, 256)
    for packed_format in set(FORMATS) - set(ROUNDED):
        with pytest.raises(KtError, match="source encoding 0 does not pack into format"):
            pack(library, packed_format, floats)
    for packed_format in set(FORMATS) - {"I4_G32"}:
        with pytest.raises(KtError, match="source encoding 2 does not pack into format"):
            pack(library, packed_format, blocks, source="Q4_0", k=256)
    with pytest.raises(KtError, match="source encoding 2 does not pack"):
        pack(library, "I4_G32", blocks, source="Q4_0", k=250)  # broken blocks
    with pytest.raises(KtError, match="source encoding 12 does not pack"):
        pack(library, "I4_K32M", random_blocks("Q4_K", 4, 256), source="Q4_K", k=128)
    lib = library.lib
    for packed_format, n, k in [(-1, 1, 32), (lib.KT_FORMATS, 1, 32), (0, 0, 32), (0, 1, 0)]:
        assert lib.kt_packed_bytes(packed_format, n, k) == lib.KT_BAD_ARGUMENT
