"""Every encoding against the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest

from kt.errors import ModelError
from kt.weights.dequantize import dequantize
from kt.weights.encodings import BY_ID, BY_NAME, ENCODINGS, IMPLEMENTED
from kt.weights.iq_grids import SIZES, grid_codes
from kt.weights.tensor import Tensor
from tests.tiny import random_blocks


def test_sizes_and_numbers_equal_the_gguf_package():
    known = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {row.id: (row.name, row.block_elements, row.block_bytes) for row in ENCODINGS}
    assert ours == known


@pytest.mark.parametrize("name", [name for name in IMPLEMENTED if name not in ("F32", "F16")])
def test_any_bits_decode_as_in_the_gguf_package(name):
    encoding = BY_NAME[name]
    width = 4 * encoding.block_bytes if encoding.block_elements > 1 else 1024
    raw = np.random.default_rng(1).integers(0, 256, (16, width), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
        got = dequantize(Tensor("x", want.shape, encoding, raw.reshape(-1)))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), np.ascontiguousarray(want).view(np.uint32))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"])
def test_quantized_values_come_back_as_the_gguf_package_says(name):
    values = np.random.default_rng(2).normal(0, 1, (8, 256)).astype(np.float32)
    raw = gguf.quantize(values, gguf.GGMLQuantizationType[name])
    got = dequantize(Tensor("x", values.shape, BY_NAME[name], raw.reshape(-1)))
    np.testing.assert_array_equal(got, gguf.dequantize(raw, gguf.GGMLQuantizationType[name]))
    assert np.abs(got - values).max() < 0.5


@pytest.mark.parametrize(("name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
def test_floats_are_themselves(name, dtype):
    values = np.array([0.0, -1.5, 6.0e-8, 65504.0, np.inf], dtype=dtype)
    got = dequantize(Tensor("x", (5,), BY_NAME[name], values.view(np.uint8)))
    np.testing.assert_array_equal(got, values.astype(np.float32))


def test_random_blocks_of_the_tiny_models_are_finite():
    for name in ("Q4_K", "Q5_K", "Q6_K"):
        raw = random_blocks(name, 4, 512)
        got = dequantize(Tensor("x", (4, 512), BY_NAME[name], raw.reshape(-1)))
        assert np.isfinite(got).all()
        assert got.std() > 0


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_grids_are_those_of_the_gguf_package(name):
    theirs = getattr(gguf.quants, name)
    theirs.init_grid()
    sizes = SIZES["IQ1" if name == "IQ1_S" else name if name in SIZES else "IQ2"]
    np.testing.assert_array_equal(
        np.array(sizes)[grid_codes(name)], theirs.grid.reshape(theirs.grid_shape)
    )


def test_an_encoding_without_arithmetic_is_refused_by_name():
    raw = np.zeros(66, dtype=np.uint8)
    with pytest.raises(ModelError, match="'w' has type TQ2_0"):
        dequantize(Tensor("w", (1, 256), BY_ID[35], raw))


def test_a_row_of_broken_blocks_has_no_size():
    assert BY_NAME["Q4_0"].nbytes((3, 64)) == 3 * 2 * 18
    with pytest.raises(ValueError, match="whole blocks of 32"):
        BY_NAME["Q4_0"].nbytes((64, 33))
