"""Codes whose scales lie apart: packed, unpacked and multiplied, on every variant."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kt.engine.sources import source_of
from kt.errors import KtError, ModelError
from kt.kernels import reference
from kt.kernels.library import Library, Source, load
from kt.weights.act_order import columns_of
from kt.weights.dequantize import dequantize
from kt.weights.encodings import AWQ, FP8, GPTQ, INT8, U4, Encoding
from kt.weights.formats.assemble import assemble
from kt.weights.quant import E2M1, E4M3, Quant, Zeros
from kt.weights.safetensors_file import read_file
from kt.weights.tensor import Tensor
from tests.native.harness import (
    RUNNABLE,
    Builder,
    Packed,
    Seq,
    aligned,
    assert_same_bits,
    normal,
    pool_of,
    relative_error,
    unpack,
)
from tests.native.test_linear import MOST, TOKENS, product
from tests.quantised import SCHEMES

# One source of every packed format whose scales lie apart: encoding, scale type, columns of a
# group (0: whole rows), zero points.
KINDS: dict[str, tuple[Encoding, str, int, bool]] = {
    "F8_G32": (FP8, "F32", 32, False),
    "F8_G128": (FP8, "F32", 128, False),
    "F8_ROW": (FP8, "F32", 0, False),
    "F8_MX": (FP8, "E8M0", 32, False),
    "I8_ROW": (INT8, "F32", 0, False),
    "I4_G32": (U4, "F16", 32, False),
    "I4_G64": (U4, "F16", 64, False),
    "I4_G128": (U4, "F16", 128, False),
    "I4_B32": (U4, "BF16", 32, False),
    "I4_B128": (U4, "BF16", 128, False),
    "I4_Z32": (U4, "F16", 32, True),
    "I4_Z64": (U4, "BF16", 64, True),
    "I4_Z128": (U4, "BF16", 128, True),
    "I4_Z128H": (U4, "F16", 128, True),
    "F4_MX": (U4, "E8M0", 32, False),
    "F4_NV": (U4, "E4M3", 16, False),
}
INTEGERS = tuple(name for name in KINDS if not name.startswith("F8"))
# What the scales of a format are stored as, where that is not the source's type.
STORED = {"I4_Z32": "F32", "I4_Z64": "F32", "I4_Z128": "F32"}
SHAPES = [(1, 32), (17, 100), (40, 352), (33, 16)]


def apart(packed: str, n: int, k: int, seed: int = 0) -> Tensor:
    """A random matrix of any n and k; the last group may be partial."""
    encoding, scale_type, group, zeros = KINDS[packed]
    rng = np.random.default_rng(seed)
    shape = (n, 1) if not group else (n, -(-k // group))
    spread = {INT8: 70.0, FP8: 1.0, U4: 4.6}[encoding]
    sizes = rng.uniform(0.5, 1.5, shape) * k**-0.5 / spread
    if encoding is FP8:
        data = torch.from_numpy(normal(seed, n, k)).to(torch.float8_e4m3fn)
        data = data.view(torch.uint8).numpy()
    else:
        row = k if encoding is INT8 else -(-k // 2)
        data = rng.integers(0, 256, (n, row), dtype=np.uint8)
    stored = {
        "F32": lambda: sizes.astype(np.float32),
        "F16": lambda: sizes.astype(np.float16),
        "BF16": lambda: (sizes.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "E8M0": lambda: (np.round(np.log2(sizes)) + 127).astype(np.uint8),
        "E4M3": lambda: rng.integers(0x08, 0x38, shape, dtype=np.uint8),
    }[scale_type]()
    zero = rng.integers(0, 17, shape, dtype=np.uint8)
    block = (1, group or k)
    quant = Quant(packed, stored, scale_type, block, Zeros(zero, np.asarray) if zeros else None)
    return Tensor(packed, (n, k), encoding, np.ascontiguousarray(data).reshape(-1), quant)


def pack(library: Library, tensor: Tensor, threads: int = 1) -> Packed:
    n, k = tensor.shape
    name = tensor.packed_format
    size = library.lib.kt_packed_bytes(library.format(name), n, k)
    data = aligned(size, fill=0xA5)
    target = library.ffi.from_buffer(data)
    library.pack(pool_of(library.name, threads), name, (n, k), source_of(tensor, name), target)
    return Packed(name, n, k, 1, size, data)


@pytest.mark.parametrize("packed", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_unpacked_values_are_the_dequantised_ones(library, packed, shape):
    tensor = apart(packed, *shape)
    assert_same_bits(unpack(library, pack(library, tensor)) + 0.0, dequantize(tensor) + 0.0)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_comes_back(tmp_path, name):
    """From the tensors in a file, partial edge blocks and all."""
    scheme = SCHEMES[name]
    values = np.random.default_rng(0).standard_normal((136, 288)) * 0.06
    parts, _ = scheme.write(values, np.random.default_rng(1))
    save_file({"a" + ending: part for ending, part in parts.items()}, tmp_path / "x.safetensors")
    files = read_file(tmp_path / "x.safetensors")
    (tensor,) = assemble(tmp_path, files, {"quantization_config": scheme.config})
    assert tensor.quant is not None
    library = load("avx2")
    got = unpack(library, pack(library, tensor))
    columns = columns_of(tensor)
    if columns is not None:
        got[:, columns] = got.copy()
    if tensor.quant.factor is not None:  # kt_weight.scale, applied to the sums
        got = got * np.float32(tensor.quant.factor_value())
    assert_same_bits(got + 0.0, dequantize(tensor) + 0.0)


@pytest.mark.parametrize("packed", ["I4_Z32", "I4_Z64", "I4_Z128"])
def test_zero_points_of_float32_scales_are_within_a_rounding(packed):
    """scale * code and scale * zero are rounded apart; scales of 16 bits lose nothing."""
    tensor = apart(packed, 40, 352)
    assert tensor.quant is not None
    scales = normal(1, *tensor.quant.scales.shape)
    wide = Quant(packed, scales, "F32", tensor.quant.block, tensor.quant.zeros)
    tensor = Tensor("wide", tensor.shape, tensor.encoding, tensor.data, wide)
    got, want = unpack(load("avx2"), pack(load("avx2"), tensor)), dequantize(tensor)
    spread = np.repeat(np.abs(scales), wide.block[1], axis=1)[:, :352]
    assert (np.abs(got - want) <= 16 * spread * 2.0**-23).all()


@pytest.mark.parametrize("packed", KINDS)
def test_bytes_do_not_depend_on_variant_or_threads(packed):
    tensor = apart(packed, 205, 480)
    want = pack(load("avx2"), tensor).data
    for name in RUNNABLE:
        for threads in (1, 3):
            np.testing.assert_array_equal(pack(load(name), tensor, threads).data, want)


def limit(packed: str, variant: str) -> float:
    """What rounding of activations may cost: to 8 bits per 32, to bfloat16, or nothing."""
    if packed in INTEGERS:
        return 1e-2
    return 2e-3 if variant in ("avx512_bf16", "amx_model") else 1e-5


@pytest.mark.parametrize("packed", KINDS)
def test_products_and_rows_alone(library, packed):
    for n, k in [(15, 32), (33, 480), (48, 100)]:
        weight = pack(library, apart(packed, n, k, seed=n))
        x = normal(n * k, MOST, k)
        program = product(library, [weight], x)
        whole = program.forward(MOST)
        normed = reference.rms_norm(torch.from_numpy(x).double(), torch.ones(k), 1e-6)
        values = torch.from_numpy(unpack(library, weight)).double()
        assert relative_error(whole, reference.linear(normed, values)) < limit(packed, library.name)
        for tokens in TOKENS:
            assert_same_bits(program.forward(tokens), whole[:tokens])
        for row in (0, 5, 31, 32, MOST - 1):
            assert_same_bits(program.forward([Seq([row])]), whole[row : row + 1])


@pytest.mark.parametrize("packed", KINDS)
def test_thread_counts_give_the_same_bits(library, packed):
    weight = pack(library, apart(packed, 200, 256))
    x = normal(1, MOST, 256)
    want = product(library, [weight], x).forward(MOST)
    assert_same_bits(product(library, [weight], x, 3).forward(MOST), want)


@pytest.mark.parametrize("packed", INTEGERS)
def test_integer_formats_give_the_same_bits_on_amx_and_vnni(packed):
    x = normal(2, MOST, 352)
    names = sorted({"amx_model", "avx512_bf16", "avx512_vbmi", "avx512_vnni"} & set(RUNNABLE))
    results = [
        product(load(name), [pack(load(name), apart(packed, 65, 352))], x).forward(MOST)
        for name in names
    ]
    assert len(results) == 4
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("packed", ["F4_NV", "I4_B32", "F8_G128"])
def test_a_factor_multiplies_the_product(library, packed):
    """kt_weight.scale, here a power of two, so that nothing is rounded. The bias stays."""
    weight, x, bias = pack(library, apart(packed, 33, 96)), normal(3, 20, 96), normal(4, 33)
    results = []
    for factor in (1.0, 0.25):
        builder = Builder(library)
        builder.embed("x", x)
        builder.norm("x", "normed")
        builder.linear("normed", "y", [weight], bias=[np.zeros(33, np.float32)])
        builder.linear("normed", "z", [weight], bias=[bias])
        for op in builder.ops[2:]:
            op.w[0].scale = builder.floats(np.array([factor], np.float32))
        program = builder.build(20)
        results.append((program.forward(20), program.values("y", 20)))
    (_, whole), (biased, quarter) = results
    assert_same_bits(quarter, whole / 4)
    assert_same_bits(biased, quarter + bias)


def test_every_fp8_code_in_a_product(library):
    """One code per output row, times one: the code's value; its subnormals are no zeros."""
    codes = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 32, axis=1)
    codes[:, 1:] = 0
    scales = np.ones((256, 1), np.float32)
    quant = Quant("F8_ROW", scales, "F32", (1, 32))
    finite = ~np.isnan(E4M3)
    tensor = Tensor("codes", (256, 32), FP8, codes.reshape(-1), quant)
    weight = pack(library, tensor)
    np.testing.assert_array_equal(unpack(library, weight)[:, 0], E4M3)
    x = np.ones((20, 32), np.float32)
    program = product(library, [weight], x)
    for tokens in (1, 20):
        status, _ = program.run(tokens)
        assert status == library.lib.KT_NOT_FINITE
        got = program.values("y", tokens)
        one = program.values("normed", tokens)[:, :1]
        if library.name in ("avx512_bf16", "amx_model"):
            one = reference.round_bf16(torch.from_numpy(one)).numpy()
        np.testing.assert_allclose(got[:, finite], one * E4M3[finite], rtol=1e-6)
        assert np.isnan(got[:, ~finite]).all()


@pytest.mark.parametrize("kind, group", [("F8_G32", 32), ("F8_G128", 128), ("F8_MX", 32)])
def test_a_nan_code_breaks_its_row_alone(library, kind, group):
    """Wherever it stands in its group, and whatever it is multiplied by."""
    codes = np.full((33, 256), 0x38, np.uint8)  # ones
    rows, columns = [1, 17, 32], [0, 127, 255]
    codes[rows, columns] = 0x7F, 0xFF, 0x7F
    scales = np.ones((33, 256 // group), np.float32)
    scale_type = "F32"
    if kind == "F8_MX":
        scales, scale_type = np.full(scales.shape, 127, np.uint8), "E8M0"
    quant = Quant(kind, scales, scale_type, (1, group))
    weight = pack(library, Tensor("codes", (33, 256), FP8, codes.reshape(-1), quant))
    values = unpack(library, weight)
    assert np.isnan(values[rows, columns]).all()
    x = np.zeros((20, 256), np.float32)
    x[:, 5] = 1
    program = product(library, [weight], x)
    for tokens in (1, 20):
        status, _ = program.run(tokens)
        assert status == library.lib.KT_NOT_FINITE
        got = program.values("y", tokens)
        assert np.isnan(got[:, rows]).all()
        assert np.isfinite(np.delete(got, rows, axis=1)).all()


@pytest.mark.parametrize("packed", ["F4_MX", "F4_NV"])
def test_every_fp4_code_and_scale(packed):
    """All 16 codes under all 256 scales. E8M0: 2^(s - 127); E4M3: torch's float8."""
    group = 32 if packed == "F4_MX" else 16
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, group // 16))
    data = codes[:, 0::2] | codes[:, 1::2] << 4
    scales = np.arange(256, dtype=np.uint8)[:, None]
    kind = "E8M0" if packed == "F4_MX" else "E4M3"
    tensor = Tensor(
        "codes", (256, group), U4, data.reshape(-1), Quant(packed, scales, kind, (1, group))
    )
    got = unpack(load("avx2"), pack(load("avx2"), tensor))
    values = np.concatenate([E2M1, -E2M1]).astype(np.float64)
    if packed == "F4_MX":
        rows = 2.0 ** (np.arange(256) - 127)
    else:
        rows = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        want = np.tile(rows[:, None] * values, (1, group // 16)).astype(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("encoding", [GPTQ, AWQ])
def test_words_along_columns_and_rows(encoding):
    """Nibble j of a GPTQ word is column 8 i + j, of an AWQ word row 8 i + (0 2 4 6 1 3 5 7)[j]."""
    rng = np.random.default_rng(3)
    n, k = 40, 96
    codes = rng.integers(0, 16, (n, k))
    words = np.zeros((k // 8, n) if encoding is GPTQ else (k, n // 8), np.uint32)
    for row in range(n):
        for column in range(k):
            if encoding is GPTQ:
                at, nibble = (column // 8, row), column % 8
            else:
                at, nibble = (column, row // 8), [0, 2, 4, 6, 1, 3, 5, 7].index(row % 8)
            words[at] |= np.uint32(codes[row, column] << 4 * nibble)
    scales = rng.uniform(0.01, 0.02, (n, 3)).astype(np.float16)
    zeros = rng.integers(0, 17, (n, 3), dtype=np.uint8)
    quant = Quant("I4_Z32", scales, "F16", (1, 32), Zeros(zeros, np.asarray))
    tensor = Tensor("words", (n, k), encoding, words.reshape(-1).view(np.uint8), quant)
    spread, zero = (np.repeat(part.astype(np.float64), 32, axis=1) for part in (scales, zeros))
    want = (spread * (codes - zero)).astype(np.float32)
    np.testing.assert_array_equal(dequantize(tensor), want)
    assert_same_bits(unpack(load("avx2"), pack(load("avx2"), tensor)) + 0.0, want + 0.0)


@pytest.mark.parametrize("name", ["gptq_v1", "gptq_8"])
def test_zero_points_that_the_settings_deny_are_refused(tmp_path, name):
    """sym promises zero points in the middle; the tensor is not believed unseen."""
    scheme = SCHEMES[name]
    parts, _ = scheme.write(normal(0, 16, 128).astype(np.float64), np.random.default_rng(1))
    parts[".qzeros"] = parts[".qzeros"] + 1
    save_file({"a" + ending: part for ending, part in parts.items()}, tmp_path / "x.safetensors")
    files = read_file(tmp_path / "x.safetensors")
    (tensor,) = assemble(tmp_path, files, {"quantization_config": scheme.config})
    with pytest.raises(ModelError, match=r"a\.weight.* zero points"):
        source_of(tensor, tensor.packed_format)


def test_no_scale_beyond_the_last_group_is_read():
    """16 columns have one scale of 16; what lies behind it is NaN."""
    tensor = apart("F4_NV", 1, 16)
    assert tensor.quant is not None
    scales = np.array([[0x30, 0x7F]], np.uint8)
    source = Source(tensor.data, 102, 8, scales, 200, 1, (1, 16))
    library = load("avx2")
    size = library.lib.kt_packed_bytes(library.format("F4_NV"), 1, 16)
    data = aligned(size)
    pool = pool_of("avx2", 1)
    library.pack(pool, "F4_NV", (1, 16), source, library.ffi.from_buffer(data))
    program = product(library, [Packed("F4_NV", 1, 16, 1, size, data)], normal(1, 3, 16))
    assert np.isfinite(program.forward(3)).all()


def holds(other: str, packed: str, k: int) -> bool:
    """Whether format `other` holds the codes and scales of the source of `packed`."""
    encoding, scales, group, zeros = KINDS[packed]
    its_encoding, its_scales, its_group, its_zeros = KINDS[other]
    stored = STORED.get(other, its_scales)
    if encoding != its_encoding or (zeros and not its_zeros):
        return False
    in_bytes = {"E8M0", "E4M3"}
    same = stored in in_bytes if scales in in_bytes else stored in (scales, "F32")
    return same and (group or k) % (its_group or k) == 0


def test_combinations_that_do_not_exist_are_refused(library):
    """Coarser scales serve finer ones."""
    n, k = 16, 256
    for packed in KINDS:
        tensor = apart(packed, n, k)
        source = source_of(tensor, packed)
        for other in KINDS:
            number = library.lib.kt_packed_bytes(library.format(other), n, k)
            data = aligned(number)
            target = library.ffi.from_buffer(data)
            if holds(other, packed, k):
                library.pack(pool_of(library.name, 1), other, (n, k), source, target)
                if not packed.startswith("F4"):  # whose scale bytes mean something else there
                    got = unpack(library, Packed(other, n, k, 1, number, data))
                    assert_same_bits(got + 0.0, dequantize(tensor) + 0.0)
                continue
            with pytest.raises(KtError, match="does not pack into format"):
                library.pack(pool_of(library.name, 1), other, (n, k), source, target)
