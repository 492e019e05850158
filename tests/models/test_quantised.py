"""Tiny qwen3_moe checkpoints in every scheme of quantised safetensors, from the files to logits,
against transformers in float32 on the values that the files stand for.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kt.models.families import spec
from kt.placement.budget import weight_bytes
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE, all_logits, executor
from tests.moe_reference import assert_like, reference_of
from tests.quantised import SCHEMES, SIZES, quantise
from tests.tiny import tiny_qwen3_moe

VARIANTS = [name for name in ("avx2", "avx512_bf16") if name in NATIVE] + ["amx_model"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tiny_qwen3_moe(tmp_path_factory.mktemp("plain"), seed=3, **SIZES)


@pytest.fixture(scope="module", params=SCHEMES)
def checkpoint(request, plain, tmp_path_factory):
    scheme = SCHEMES[request.param]
    quantised, dequantised = quantise(plain, tmp_path_factory.mktemp(request.param), scheme)
    return scheme, quantised, reference_of(dequantised)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_values_in_the_file(checkpoint, variant):
    scheme, folder, reference = checkpoint
    # Activations of 8 bits, or bfloat16 and better.
    limit = 8e-3 if scheme.packed.startswith("F8") else 2e-2
    assert_like(reference, folder, variant, limit)


def test_every_linear_layer_is_packed_as_its_scheme_says_and_the_plan_counts_it(checkpoint):
    scheme, folder, _ = checkpoint
    opened = open_checkpoint(folder)
    model = spec(opened)
    for layer in range(2):
        for part in ("gate", "up", "down"):
            matrices = opened.experts(layer, part)
            assert {matrix.packed_format for matrix in matrices} == {scheme.packed}
        for role in ("q", "k", "v", "o"):
            assert opened.tensor(f"layers.{layer}.{role}").packed_format == scheme.packed
    made = executor(folder, VARIANTS[0])
    vectors = weight_bytes(model, opened)["norms"]
    assert made.memory["weights"] == sum(weight_bytes(model, opened).values()) - vectors
    made.close()


def test_nothing_needs_to_be_told(checkpoint, plain):
    _, folder, _ = checkpoint
    assert open_checkpoint(folder).notes == open_checkpoint(plain).notes == ()


def test_experts_of_several_formats_are_loaded_as_float32(plain, tmp_path):
    """One expert that the quantisation left alone: exact, and the user is told."""
    scheme = SCHEMES["ct_int4_32"]
    whole, dequantised = quantise(plain, tmp_path / "whole", scheme)
    tensors = load_file(whole / "model.safetensors")
    module = "model.layers.1.mlp.experts.2.up_proj"
    for ending in ("_packed", "_scale", "_shape"):
        del tensors[f"{module}.weight{ending}"]
    values = load_file(dequantised / "model.safetensors")
    rounded = values[module + ".weight"].bfloat16()
    tensors[module + ".weight"], values[module + ".weight"] = rounded, rounded.float()
    for folder, parts in ((whole, tensors), (dequantised, values)):
        save_file(parts, folder / "model.safetensors", metadata={"format": "pt"})
    opened = open_checkpoint(whole)
    formats = [{m.packed_format for m in opened.experts(1, part)} for part in ("gate", "up")]
    assert formats == [{"I4_B32"}, {"F32"}]
    assert opened.notes == (
        "experts of layer 1: in several formats, loaded as float32, 4 bytes a weight",
    )
    assert_like(reference_of(dequantised), whole, VARIANTS[0])


@pytest.mark.parametrize("name", ["ct_int4_64_zeros", "ct_fp8_channel", "ct_mxfp4", "mxfp8"])
def test_stacked_experts_are_the_same_model(plain, tmp_path, name):
    """transformers 5 holds experts as stacks, gate rows before up rows, scales likewise."""
    folder, _ = quantise(plain, tmp_path / "single", SCHEMES[name])
    tensors = load_file(folder / "model.safetensors")
    stacked = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(2):
        base = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: [
                {
                    ending: tensors[f"{base}{expert}.{part}_proj.weight{ending}"]
                    for ending in ("", "_packed", "_scale", "_scale_inv", "_zero_point")
                    if f"{base}{expert}.{part}_proj.weight{ending}" in tensors
                }
                for expert in range(4)
            ]
            for part in ("gate", "up", "down")
        }
        for ending in parts["down"][0]:
            fused = [
                torch.cat([gate[ending], up[ending]])
                for gate, up in zip(parts["gate"], parts["up"], strict=True)
            ]
            stacked[f"{base}gate_up_proj{ending}"] = torch.stack(fused)
            down = [matrix[ending] for matrix in parts["down"]]
            stacked[f"{base}down_proj{ending}"] = torch.stack(down)
    ids = list(range(5, 45))
    made = executor(folder, VARIANTS[0])
    want = all_logits(made, ids).copy()
    made.close()
    save_file(stacked, folder / "model.safetensors", metadata={"format": "pt"})
    opened = open_checkpoint(folder)
    assert opened.experts(1, "up")[3].packed_format == SCHEMES[name].packed
    made = executor(folder, VARIANTS[0])
    got = all_logits(made, ids)
    made.close()
    np.testing.assert_array_equal(got, want)
