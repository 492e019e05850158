"""Rotary frequencies against transformers' ROPE_INIT_FUNCTIONS."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kt.errors import ModelError
from kt.models.fields import Fields
from kt.models.rope import rope_spec
from kt.weights.checkpoint import Checkpoint, open_checkpoint
from kt.weights.encodings import BY_NAME
from kt.weights.tensor import Tensor
from tests.tiny import SIZES, finish, write_llama_fields, write_tokenizer

HEAD = 64
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
CASES = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    "linear, partial": {
        "rope_type": "linear",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "partial_rotary_factor": 0.5,
    },
    "llama3": LLAMA3,
    "llama3, other bands": {
        **LLAMA3,
        "factor": 32.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 8.0,
    },
    "yarn": YARN,
    "yarn, betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, not truncated": {**YARN, "truncate": False},
    "yarn, attention factor": {**YARN, "attention_factor": 1.25},
    "yarn, mscale": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn, no context given": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
    "yarn, partial": {**YARN, "partial_rotary_factor": 0.5},
}


def _spec(**config):
    full = {"model_type": "llama", "max_position_embeddings": 131072, **config}
    checkpoint = Checkpoint(Path(), "safetensors", full, [])
    return rope_spec(Fields(full), checkpoint, HEAD)


def _oracle(rope):
    config = transformers.LlamaConfig(
        head_dim=HEAD, max_position_embeddings=131072, rope_parameters=dict(rope)
    )
    frequencies, attention = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    return frequencies.double().numpy(), attention


@pytest.mark.parametrize("case", CASES)
def test_scaled_frequencies_equal_transformers(case):
    spec = _spec(rope_parameters=CASES[case])
    frequencies, attention = _oracle(CASES[case])
    assert spec.dims == 2 * len(frequencies)
    np.testing.assert_allclose(spec.inv_freq, frequencies, rtol=2e-6)
    assert spec.attention_factor == pytest.approx(attention, rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_older_fields_mean_the_same(case):
    scaling = dict(CASES[case])
    theta = scaling.pop("rope_theta")
    partial = scaling.pop("partial_rotary_factor", None)
    scaling["type"] = scaling.pop("rope_type")
    old = _spec(rope_theta=theta, partial_rotary_factor=partial, rope_scaling=scaling)
    assert old == _spec(rope_parameters=CASES[case])


def test_without_scaling_frequencies_are_powers_of_theta():
    spec = _spec(rope_theta=100000.0)
    want = [100000.0 ** (-2 * i / HEAD) for i in range(HEAD // 2)]
    np.testing.assert_allclose(spec.inv_freq, want, rtol=1e-12)
    assert spec.attention_factor == 1.0
    assert _spec(rope_parameters={"rope_type": "default", "rope_theta": 100000.0}) == spec
    assert _spec(rope_theta=100000.0, rope_scaling=None) == spec


def test_partial_rotation_covers_the_leading_dimensions():
    spec = _spec(rope_theta=10000.0, partial_rotary_factor=0.5)
    assert spec.dims == 32
    np.testing.assert_allclose(spec.inv_freq, [10000.0 ** (-i / 16) for i in range(16)], rtol=1e-12)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type = longrope"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 2]}},
            r"mrope_section = \[1, 2\]",
        ),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor = 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor = 2"),
        ({"rope_parameters": {"rope_type": "linear"}}, "has no factor"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "has no factor"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "rope_type = "),
        ({"rope_parameters": {**YARN, "rope_theta": 1.0}}, "no finite frequencies"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "one set for all layers"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 1e308}, "partial_rotary_factor"),
        ({"rope_parameters": {**YARN, "beta_fast": 1e308}}, "beta_fast = 1e"),
        ({"rope_parameters": {**YARN, "beta_slow": 1e308}}, "beta_slow = 1e"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "must exceed"),
        ({"rope_theta": 1e4, "original_max_position_embeddings": 4096}, "needs rope_type"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name_and_value(config, words):
    with pytest.raises(ModelError, match=words):
        _spec(**config)


NAMES = (*YARN, *LLAMA3, "type", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-1, 5)
    | st.floats()
    | st.sampled_from(["yarn", "llama3", "linear", "default", "x", [], {}, [1]])
)


@settings(max_examples=500, deadline=None)
@given(
    kind=st.sampled_from([YARN, LLAMA3, CASES["linear"]]),
    changes=st.dictionaries(st.sampled_from(sorted(set(NAMES))), VALUES, min_size=1, max_size=4),
)
def test_any_parameters_give_finite_frequencies_or_a_model_error(kind, changes):
    try:
        found = _spec(rope_parameters={**kind, **changes})
    except ModelError as error:
        assert error.message
    else:
        assert np.isfinite([*found.inv_freq, found.attention_factor]).all()


def test_a_gguf_files_divisors_give_llama3s_frequencies(tmp_path):
    """A converter stores theta's plain frequency over the scaled one in rope_freqs.weight."""
    plain = np.array([500000.0 ** (-2 * i / HEAD) for i in range(HEAD // 2)])
    scaled, _ = _oracle(LLAMA3)
    divisors = (plain / scaled).astype(np.float32)
    tensor = Tensor("rope_freqs.weight", (HEAD // 2,), BY_NAME["F32"], divisors.view(np.uint8))
    config = {"rope_parameters": {"rope_type": "factors", "rope_theta": 500000.0}}
    spec = rope_spec(Fields(config), Checkpoint(tmp_path, "gguf", config, [tensor]), HEAD)
    np.testing.assert_allclose(spec.inv_freq, scaled, rtol=2e-6)


@pytest.mark.parametrize(
    ("write", "rope"),
    [
        (lambda w: w.add_rope_freq_base(5e5), {"rope_type": "default", "rope_theta": 5e5}),
        (
            lambda w: (
                w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
                w.add_rope_scaling_factor(2.0),
            ),
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        ),
        (
            lambda w: w.add_float32("llama.rope.scale_linear", 4.0),
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            lambda w: (
                w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
                w.add_rope_scaling_factor(4.0),
                w.add_rope_scaling_orig_ctx_len(128),
                w.add_rope_scaling_yarn_beta_fast(16.0),
            ),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 16.0,
            },
        ),
        (
            lambda w: w.add_rope_dimension_count(16),
            {"rope_type": "default", "partial_rotary_factor": 0.5},
        ),
    ],
)
def test_gguf_scaling_is_that_of_the_config(tmp_path, write, rope):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    write_llama_fields(writer, SIZES, rope=False)
    write(writer)
    write_tokenizer(writer)
    writer.add_tensor("token_embd.weight", np.zeros((320, 64), dtype=np.float32))
    found = open_checkpoint(finish(writer, tmp_path / "x.gguf")).config["rope_parameters"]
    assert {key: found[key] for key in rope} == rope
