"""Every scheme of quantised safetensors against its formula in float64, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kt.errors import ModelError
from kt.models.families import spec
from kt.weights.act_order import columns_of
from kt.weights.checkpoint import open_checkpoint
from kt.weights.dequantize import dequantize
from kt.weights.formats.assemble import assemble
from kt.weights.safetensors_file import read_file
from kt.weights.tensor import Tensor
from tests.quantised import (
    AWQ_CONFIG,
    E2M1,
    SCHEMES,
    Parts,
    compressed,
    fp8_config,
    gptq_config,
    int4,
    mxfp4,
    quantise,
)
from tests.tiny import tiny_llama

# n and k: partial blocks of 128 and 32 wherever a format allows them.
SHAPES = [(24, 160), (136, 288), (8, 64)]
NAME = "model.layers.0.mlp.down_proj"


def matrix(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)) * k**-0.5


def read(folder: Path, config: object, tensors: Parts) -> dict[str, Tensor]:
    save_file(tensors, folder / "x.safetensors")
    found = assemble(folder, read_file(folder / "x.safetensors"), {"quantization_config": config})
    return {tensor.name: tensor for tensor in found}


def read_one(folder: Path, config: object, parts: Parts) -> Tensor:
    (tensor,) = read(
        folder, config, {NAME + ending: part for ending, part in parts.items()}
    ).values()
    return tensor


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_the_formats_formula(tmp_path, name, shape):
    scheme = SCHEMES[name]
    parts, values = scheme.write(matrix(*shape), np.random.default_rng(1))
    tensor = read_one(tmp_path, scheme.config, parts)
    assert tensor.name == NAME + ".weight"
    assert tensor.shape == shape
    got = dequantize(tensor)
    assert got.dtype == np.float32
    assert np.std(values) > 0.01
    if name == "ct_nvfp4":  # one over the global scale is rounded, then the product
        np.testing.assert_allclose(got, values, rtol=2e-7)
    else:
        np.testing.assert_array_equal(got, values.astype(np.float32))


@pytest.mark.parametrize("name", SCHEMES)
def test_packed_formats(tmp_path, name):
    scheme = SCHEMES[name]
    parts, _ = scheme.write(matrix(136, 288), np.random.default_rng(1))
    assert read_one(tmp_path, scheme.config, parts).packed_format == scheme.packed


@pytest.mark.parametrize("k", [33, 71, 100])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_weight_shape_trims_the_padding_of_the_last_word(tmp_path, k, as_bytes):
    config = compressed(4, "int", "group", group_size=32)
    parts, values = int4(32, as_bytes=as_bytes)(matrix(13, k), np.random.default_rng(1))
    tensor = read_one(tmp_path, config, parts)
    assert tensor.shape == (13, k)
    np.testing.assert_array_equal(dequantize(tensor), values.astype(np.float32))


def test_all_fp8_codes(tmp_path):
    """Subnormals, both zeros, NaN: torch's conversion is the other opinion."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(2, 128)
    parts = {".weight": codes, ".weight_scale": torch.ones(2, 1)}
    got = dequantize(read_one(tmp_path, fp8_config(None), parts))
    want = codes.float().numpy()
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got[0, 127]) and np.isnan(got[1, 127]) and np.isnan(got).sum() == 2
    assert np.signbit(got[1, 0]) and got[0, 1] == 2.0**-9 and got[0, 126] == 448


def test_e8m0_scales_reach_from_the_smallest_to_nan(tmp_path):
    exponents = torch.tensor([[0, 1, 127, 254, 255]], dtype=torch.uint8)
    parts = {".weight": torch.ones(1, 160).to(torch.float8_e4m3fn), ".weight_scale_inv": exponents}
    got = dequantize(read_one(tmp_path, {"quant_method": "mxfp8"}, parts))[0, ::32]
    np.testing.assert_array_equal(got, np.float32([2.0**-127, 2.0**-126, 1, 2.0**127, np.nan]))


def test_gpt_oss_blocks_of_experts(tmp_path):
    """[experts, n, k / 32, 16] bytes: the low nibble comes first."""
    written = [mxfp4(blocks=True)(matrix(24, 96, e), np.random.default_rng(e)) for e in range(3)]
    base = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {
        base + ending: torch.stack([parts[ending] for parts, _ in written])
        for ending in ("_blocks", "_scales")
    }
    bias = torch.ones(3, 24)
    found = read(tmp_path, {"quant_method": "mxfp4"}, {**tensors, base + "_bias": bias})
    stack = found[base]
    want = np.stack([values for _, values in written]).astype(np.float32)
    assert stack.shape == (3, 24, 96)
    assert stack.packed_format == "F4_MX"
    np.testing.assert_array_equal(dequantize(stack), want)
    np.testing.assert_array_equal(dequantize(stack.matrix(2)), want[2])
    assert found[base + "_bias"].shape == (3, 24)
    first = tensors[base + "_blocks"][0, 0, 0, 0].item()
    scale = 2.0 ** (tensors[base + "_scales"][0, 0, 0].item() - 127)
    assert want[0, 0, :2].tolist() == [E2M1[first & 15] * scale, E2M1[first >> 4] * scale]


@pytest.mark.parametrize("name", ["fp8_blocks", "ct_int4_64_zeros", "ct_nvfp4", "ct_int8"])
def test_stacks_and_halves_take_their_scales_along(tmp_path, name):
    scheme = SCHEMES[name]
    rng = np.random.default_rng(1)
    written = [scheme.write(matrix(256, 288, e), rng) for e in range(2)]
    base = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {
        base + ending.removeprefix(".weight"): torch.stack([parts[ending] for parts, _ in written])
        for ending in written[0][0]
        if not ending.endswith("_shape")
    }
    (stack,) = read(tmp_path, scheme.config, tensors).values()
    assert stack.shape == (2, 256, 288)
    for e, (_, values) in enumerate(written):
        one = stack.matrix(e)
        np.testing.assert_allclose(dequantize(one), values.astype(np.float32), rtol=2e-7)
        for first, last in ((0, 128), (128, 256)):
            part = dequantize(one.rows(first, last))
            np.testing.assert_array_equal(part, dequantize(one)[first:last])
    if name == "fp8_blocks":
        with pytest.raises(ModelError, match="rows 0 to 100 are not whole blocks of 128"):
            stack.matrix(0).rows(0, 100)


def test_modules_that_are_not_quantised_stay_as_they_are(tmp_path):
    parts, _ = SCHEMES["fp8_blocks"].write(matrix(24, 160), np.random.default_rng(1))
    plain = torch.ones(4, 8, dtype=torch.bfloat16)
    tensors = {NAME + ending: part for ending, part in parts.items()}
    found = read(tmp_path, fp8_config([128, 128]), {**tensors, "lm_head.weight": plain})
    assert found["lm_head.weight"].packed_format == "BF16"
    assert found[NAME + ".weight"].packed_format == "F8_G128"


def test_settings_of_activations_and_caches_are_left_out(tmp_path):
    parts, values = SCHEMES["modelopt_fp8"].write(matrix(24, 160), np.random.default_rng(1))
    more = {".input_scale": torch.tensor(0.1), ".k_scale": torch.tensor(1.0)}
    tensor = read_one(tmp_path, SCHEMES["modelopt_fp8"].config, {**parts, **more})
    np.testing.assert_array_equal(dequantize(tensor), values.astype(np.float32))


def test_groups_of_modules_have_their_own_settings(tmp_path):
    config = compressed(4, "int", "group", group_size=32)
    eight = compressed(8, "float", "channel")["config_groups"]["group_0"]
    config["config_groups"]["group_1"] = {**eight, "targets": ["re:.*o_proj$"]}
    rng = np.random.default_rng(1)
    four_parts, four = SCHEMES["ct_int4_32"].write(matrix(24, 160), rng)
    eight_parts, eight_values = SCHEMES["ct_fp8_channel"].write(matrix(24, 160), rng)
    other = "model.layers.0.self_attn.o_proj"
    tensors = {NAME + ending: part for ending, part in four_parts.items()}
    tensors |= {other + ending: part for ending, part in eight_parts.items()}
    found = read(tmp_path, config, tensors)
    np.testing.assert_array_equal(dequantize(found[NAME + ".weight"]), four.astype(np.float32))
    got = dequantize(found[other + ".weight"])
    np.testing.assert_array_equal(got, eight_values.astype(np.float32))


MISSING = {
    "fp8_blocks": (".weight_scale_inv", "has no scale"),
    "ct_fp8_channel": (".weight_scale", "has no scale"),
    "ct_int8": (".weight_scale", "has no scale"),
    "ct_int4_32": (".weight_scale", "has no scales"),
    "ct_int4_64_zeros": (".weight_zero_point", "has no zero points"),
    "ct_mxfp4": (".weight_scale", "has no scales"),
    "ct_nvfp4": (".weight_global_scale", "has no global scale"),
    "modelopt_nvfp4": (".weight_scale_2", "has no global scale"),
    "gptq_v1": (".scales", "has no scales"),
    "awq": (".qzeros", "has no zero points"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_an_error_that_names_the_tensor(tmp_path, name):
    scheme, (ending, words) = SCHEMES[name], MISSING[name]
    parts, _ = scheme.write(matrix(24, 160), np.random.default_rng(1))
    del parts[ending]
    with pytest.raises(ModelError, match=words) as caught:
        read_one(tmp_path, scheme.config, parts)
    assert NAME + ".weight" in caught.value.message


@pytest.mark.parametrize("name", [n for n in SCHEMES if "act_order" not in n])
def test_scales_of_another_shape_are_refused(tmp_path, name):
    scheme = SCHEMES[name]
    parts, _ = scheme.write(matrix(24, 160), np.random.default_rng(1))
    ending = next(e for e in (".weight_scale_inv", ".weight_scale", ".scales") if e in parts)
    scale = parts[ending]
    parts[ending] = torch.cat([scale.reshape(-1).view(torch.uint8)] * 3).view(scale.dtype)
    with pytest.raises(ModelError, match="has shape"):
        read_one(tmp_path, scheme.config, parts)


def test_faults_are_listed_together(tmp_path):
    codes = torch.zeros(8, 32).to(torch.float8_e4m3fn)
    with pytest.raises(ModelError) as caught:
        read(tmp_path, fp8_config([128, 128]), {"a.weight": codes, "b.weight": codes.clone()})
    assert "a.weight" in caught.value.message and "b.weight" in caught.value.message


REFUSED = [
    ({"quant_method": "bitsandbytes"}, "quant_method = bitsandbytes is not supported"),
    ({}, None),
    ("fp8", "quant_method = None"),
    (gptq_config(128, "gptq", bits=3), "bits = 3"),
    (gptq_config(128, "gptq", bits=8, sym=False), "sym = False"),
    (gptq_config(128, "marlin"), "checkpoint_format = marlin"),
    (gptq_config(128, "gptq", dynamic={r"+:.*down.*": {"bits": 8}}), "dynamic"),
    (gptq_config(128, "gptq", hadamard=True), "hadamard = True"),
    ({**AWQ_CONFIG, "version": "gemv", "group_size": 128}, "version = gemv"),
    ({**AWQ_CONFIG, "bits": 8, "group_size": 128}, "bits = 8"),
    (fp8_config([128, 128], fmt="e5m2"), "fmt = e5m2"),
    (fp8_config([128]), "weight_block_size"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo = W4A8_AWQ"),
    ({**compressed(4, "int", "group"), "transform_config": {"r1": 1}}, "transform_config"),
    (
        {**compressed(4, "int", "group"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparse-24-bitmask",
    ),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
]


@pytest.mark.parametrize(("config", "words"), REFUSED, ids=str)
def test_settings_that_are_not_supported_are_refused_by_name_and_value(tmp_path, config, words):
    plain = {"a.weight": torch.ones(4, 8)}
    if words is None:  # no settings: nothing is quantised
        assert list(read(tmp_path, config, plain)) == ["a.weight"]
        return
    with pytest.raises(ModelError, match=words):
        read(tmp_path, config, plain)


LAYOUTS = [
    ("fp8_blocks", fp8_config([64, 48]), "blocks of 64 x 48 are not supported"),
    ("ct_int4_32", compressed(4, "int", "group", group_size=16), "groups of 16 columns"),
    ("ct_int4_32", compressed(3, "int", "group", group_size=32), "int of 3 bits"),
    ("ct_int4_32", compressed(4, "int", "tensor"), "strategy = tensor"),
    ("ct_int8", compressed(8, "int", "group", group_size=32), "strategy = group"),
    ("ct_int8", compressed(8, "int", "channel", symmetric=False), "symmetric = False"),
    ("gptq_v1", gptq_config(16, "gptq"), "groups of 16 columns"),
    ("ct_int4_32", fp8_config([128, 128]), None),
]


@pytest.mark.parametrize(("name", "config", "words"), LAYOUTS)
def test_layouts_without_a_packed_format_are_refused(tmp_path, name, config, words):
    parts, _ = SCHEMES[name].write(matrix(136, 288), np.random.default_rng(1))
    if words is None:  # tensors of another scheme stay alone, under their own names
        found = read(tmp_path, config, {NAME + ending: part for ending, part in parts.items()})
        assert NAME + ".weight_packed" in found
        return
    with pytest.raises(ModelError, match=words):
        read_one(tmp_path, config, parts)


def test_settings_that_modelopt_wrote_into_a_file_of_their_own(tmp_path):
    scheme = SCHEMES["modelopt_nvfp4"]
    plain = tiny_llama(tmp_path / "plain", hidden_size=128, intermediate_size=160)
    folder, _ = quantise(plain, tmp_path / "made", scheme)
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    del settings["quant_method"]
    older = {"producer": {"name": "modelopt"}, "quantization": {**settings, "group_size": 16}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        open_checkpoint(folder)
    (folder / "hf_quant_config.json").write_text(json.dumps(older))
    found = open_checkpoint(folder)
    assert spec(found).family == "llama"
    assert found.tensor("layers.0.down").packed_format == "F4_NV"


def test_8_bit_gptq_wants_float16_scales(tmp_path):
    scheme = SCHEMES["gptq_8"]
    parts, _ = scheme.write(matrix(24, 160), np.random.default_rng(1))
    parts[".scales"] = parts[".scales"].bfloat16()
    with pytest.raises(ModelError, match="BF16 scales of 8-bit codes"):
        read_one(tmp_path, scheme.config, parts)


def test_a_group_index_out_of_range_is_refused(tmp_path):
    scheme = SCHEMES["gptq_act_order"]
    parts, _ = scheme.write(matrix(24, 160), np.random.default_rng(1))
    for value in (-1, 5):
        broken = parts[".g_idx"].clone()
        broken[3] = value
        with pytest.raises(ModelError, match="does not give each of 160 columns a group of 32"):
            read_one(tmp_path, scheme.config, {**parts, ".g_idx": broken})


def test_act_order_is_told_by_the_index_not_by_the_setting(tmp_path):
    """A g_idx of runs is loaded as 4 bits whatever desc_act says, a shuffled one too: its
    columns are sorted."""
    shuffled = SCHEMES["gptq_act_order"]
    parts, values = shuffled.write(matrix(24, 160), np.random.default_rng(1))
    lying = replace(shuffled, config={**shuffled.config, "desc_act": False})
    tensor = read_one(tmp_path, lying.config, parts)
    assert tensor.packed_format == "I4_Z32"
    assert columns_of(tensor) is not None
    np.testing.assert_array_equal(dequantize(tensor), values.astype(np.float32))
    plain = SCHEMES["gptq_v1_zeros"]
    parts, _ = plain.write(matrix(24, 160), np.random.default_rng(1))
    tensor = read_one(tmp_path, {**plain.config, "desc_act": True}, parts)
    assert tensor.packed_format == "I4_Z32"
