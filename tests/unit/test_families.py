"""From config and tensors to a ModelSpec; every field is implemented or refused."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from kt.errors import ModelError
from kt.models.families import spec
from kt.models.spec import ExpertSpec, MlpSpec, RouterSpec
from kt.weights.checkpoint import Checkpoint, open_checkpoint
from kt.weights.dequantize import dequantize
from tests.tiny import (
    SIZES,
    finish,
    tiny_gguf,
    tiny_llama,
    tiny_qwen3_moe,
    tiny_qwen3_moe_gguf,
    write_llama_fields,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> Path:
    return tiny_qwen3_moe(tmp_path_factory.mktemp("qwen"))


def _with(checkpoint: Checkpoint, **config) -> Checkpoint:
    checkpoint.config.update(config)
    return checkpoint


def test_a_llama_config_becomes_a_spec(llama):
    found = spec(open_checkpoint(llama))
    attention = found.layers[0].attention
    assert (found.family, found.hidden, found.vocab, found.context) == ("llama", 64, 320, 512)
    assert (len(found.layers), found.norm_eps, found.tied_embeddings) == (3, 1e-6, False)
    assert (found.eos_ids, found.bos_id) == ((2,), 0)
    assert (attention.n_heads, attention.n_kv_heads, attention.head_dim) == (4, 2, 32)
    assert attention.scale == 32**-0.5
    assert not (
        attention.rope.interleaved or attention.qk_norm or attention.qkv_bias or attention.window
    )
    assert found.layers[2].mlp == MlpSpec(96)


def test_a_qwen3_moe_config_becomes_a_spec(qwen):
    found = spec(open_checkpoint(qwen))
    assert found.layers[0].attention.qk_norm
    assert found.layers[0].mlp == ExpertSpec(RouterSpec(8, 2, normalise=True), MlpSpec(48))


def test_every_tensor_equals_transformers(qwen):
    """The disk holds a matrix per expert, transformers two fused stacks: roles must give the same
    numbers.
    """
    import transformers

    model = transformers.Qwen3MoeForCausalLM.from_pretrained(qwen, dtype=torch.float32)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    found = open_checkpoint(qwen)
    experts = state["model.layers.1.mlp.experts.gate_up_proj"]
    for index in range(8):
        np.testing.assert_array_equal(
            dequantize(found.experts(1, "gate")[index]), experts[index, :48]
        )
        np.testing.assert_array_equal(
            dequantize(found.experts(1, "up")[index]), experts[index, 48:]
        )
        np.testing.assert_array_equal(
            dequantize(found.experts(1, "down")[index]),
            state["model.layers.1.mlp.experts.down_proj"][index],
        )
    for role, name in (
        ("embed", "model.embed_tokens.weight"),
        ("layers.2.router", "model.layers.2.mlp.gate.weight"),
        ("layers.0.k_norm", "model.layers.0.self_attn.k_norm.weight"),
        ("layers.0.mlp_norm", "model.layers.0.post_attention_layernorm.weight"),
        ("lm_head", "lm_head.weight"),
    ):
        np.testing.assert_array_equal(dequantize(found.tensor(role)), state[name])
    assert (
        found.tensor_bytes == sum(value.nbytes for value in state.values()) // 2
    )  # bfloat16 on disk


def test_fused_expert_stacks_give_the_same_matrices(qwen, tmp_path):
    for path in qwen.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(3):
        names = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([tensors.pop(f"{names}.{e}.{part}_proj.weight") for e in range(8)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{names}.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{names}.down_proj"] = down
    save_file(tensors, tmp_path / "model.safetensors")
    fused, single = open_checkpoint(tmp_path), open_checkpoint(qwen)
    assert spec(fused) == spec(single)
    for part in ("gate", "up", "down"):
        for mine, theirs in zip(fused.experts(2, part), single.experts(2, part), strict=True):
            assert mine.data.tobytes() == theirs.data.tobytes()


@pytest.mark.parametrize(
    ("config", "sparse"),
    [
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"mlp_only_layers": [0, 3]}, [False, True, True, False]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [False, False, False, True]),
    ],
)
def test_dense_layers_lie_where_transformers_puts_them(tmp_path, config, sparse):
    found = spec(open_checkpoint(tiny_qwen3_moe(tmp_path, num_hidden_layers=4, **config)))
    assert [isinstance(layer.mlp, ExpertSpec) for layer in found.layers] == sparse
    assert all(
        layer.mlp == MlpSpec(96)
        for layer, is_sparse in zip(found.layers, sparse, strict=True)
        if not is_sparse
    )


def test_router_weights_may_stay_as_they_are(tmp_path):
    found = spec(open_checkpoint(tiny_qwen3_moe(tmp_path, norm_topk_prob=False)))
    assert not found.layers[0].mlp.router.normalise


def test_a_window_counts_only_where_it_is_switched_on(qwen):
    found = open_checkpoint(qwen)
    assert spec(_with(found, sliding_window=4096)).layers[0].attention.window == 0
    assert spec(_with(found, use_sliding_window=True)).layers[0].attention.window == 4096
    with pytest.raises(ModelError, match="max_window_layers = 2"):
        spec(_with(found, max_window_layers=2))


def test_biases_and_tied_embeddings(tmp_path):
    found = open_checkpoint(tiny_llama(tmp_path, attention_bias=True, tie_word_embeddings=True))
    built = spec(found)
    assert built.layers[0].attention.qkv_bias
    assert built.layers[0].attention.output_bias
    assert built.tied_embeddings
    assert not found.has("lm_head")
    assert found.tensor("layers.1.k.bias").shape == (64,)


def test_an_output_matrix_in_the_file_is_used_whatever_the_flag_says(llama):
    assert not spec(_with(open_checkpoint(llama), tie_word_embeddings=True)).tied_embeddings


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = gelu is not supported: supported: 'silu'"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"attention_multiplier": 0.5}, "attention_multiplier = 0.5"),
        ({"logits_scaling": 8.0}, "logits_scaling = 8.0"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers = 3"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers = 100000000"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings = 1"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0"),
        ({"rms_norm_eps": 1e308}, r"rms_norm_eps = 1e\+308 is not supported: .* up to 1 "),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps = 1000"),
        (
            {"model_type": "mamba"},
            r"model_type 'mamba' is not supported .supported: llama, qwen3_moe",
        ),
        ({"model_type": None}, "model_type None"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name_and_value(llama, config, words):
    with pytest.raises(ModelError, match=words):
        spec(_with(open_checkpoint(llama), **config))


def test_fields_that_are_off_or_do_not_matter_are_fine(llama):
    off = {
        "unknown_feature": None,
        "other": False,
        "list": [],
        "torch_dtype": "float16",
        "use_cache": False,
    }
    assert spec(_with(open_checkpoint(llama), **off)) == spec(open_checkpoint(llama))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_hidden_layers": 4}, r"layers\.3\.q is missing"),
        ({"num_hidden_layers": 2}, r"model\.layers\.2\.self_attn\.q_proj\.weight is not used"),
        ({"hidden_size": 128}, r"shape \[320, 64\], the config says \[320, 128\]"),
        ({"attention_bias": True}, r"layers\.0\.q\.bias is missing"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_listed(llama, config, words):
    with pytest.raises(ModelError, match=words):
        spec(_with(open_checkpoint(llama), **config))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_local_experts": 9}, "8 gate matrices, config says 9"),
        ({"moe_intermediate_size": 32}, r"shape \[48, 64\], the config says \[32, 64\]"),
        ({"num_experts_per_tok": 9}, "there are 8 experts"),
        ({"num_experts": 1025}, "num_experts = 1025 is not supported: at most 1024"),
        ({"mlp_only_layers": [1]}, "experts of layer 1 are not used"),
    ],
)
def test_experts_that_do_not_fit_the_config_are_listed(qwen, config, words):
    with pytest.raises(ModelError, match=words):
        spec(_with(open_checkpoint(qwen), **config))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 40) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_of_any_field_gives_a_spec_or_a_model_error(llama, qwen, data):
    found = open_checkpoint(data.draw(st.sampled_from([llama, qwen])))
    more = ["rope_scaling", "rope_theta", "partial_rotary_factor", "new", "max_window_layers"]
    key = data.draw(st.sampled_from(sorted(found.config) + more))
    try:
        assert spec(_with(found, **{key: data.draw(JSON)})).layers
    except ModelError as error:
        assert error.message


def test_an_unknown_tensor_is_refused_by_name(llama, tmp_path):
    for path in llama.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.sinks"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"'model\.layers\.0\.self_attn\.sinks'"):
        open_checkpoint(tmp_path)


def test_a_gguf_llama_becomes_the_same_spec_but_interleaved(tmp_path):
    found = spec(open_checkpoint(tiny_gguf(tmp_path / "x.gguf", encoding="Q8_0")))
    attention = found.layers[0].attention
    assert attention.rope.interleaved
    assert (found.family, found.hidden, found.vocab, found.context) == ("llama", 64, 320, 512)
    assert (attention.n_heads, attention.n_kv_heads, attention.head_dim) == (4, 2, 16)
    assert found.tied_embeddings
    assert not spec(open_checkpoint(tiny_gguf(tmp_path / "y.gguf", tied=False))).tied_embeddings


@pytest.mark.parametrize(
    "encoding",
    [
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ1_S",
        "IQ2_XS",
        "IQ3_S",
        "BF16",
        "F16",
        "F32",
    ],
)
def test_every_encoding_opens(tmp_path, encoding):
    found = open_checkpoint(tiny_gguf(tmp_path / "x.gguf", encoding=encoding, num_hidden_layers=1))
    assert spec(found).layers
    assert found.tensor("layers.0.q").encoding.name == encoding


def test_an_encoding_without_arithmetic_is_refused_by_tensor_and_type(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    write_llama_fields(writer, {**SIZES, "num_hidden_layers": 1})
    kind = gguf.GGMLQuantizationType.TQ1_0
    writer.add_tensor("token_embd.weight", np.zeros((320, 54), dtype=np.uint8), raw_dtype=kind)
    finish(writer, tmp_path / "x.gguf")
    with pytest.raises(
        ModelError, match=r"'token_embd\.weight' has type TQ1_0, which is not supported"
    ):
        open_checkpoint(tmp_path / "x.gguf")


def test_a_gguf_qwen3moe_becomes_a_spec(tmp_path):
    found = open_checkpoint(tiny_qwen3_moe_gguf(tmp_path / "x.gguf"))
    built = spec(found)
    assert built.family == "qwen3_moe"
    assert built.layers[0].mlp == ExpertSpec(RouterSpec(8, 2, normalise=True), MlpSpec(64))
    assert not built.layers[0].attention.rope.interleaved
    assert built.layers[0].attention.qk_norm
    assert [matrix.shape for matrix in found.experts(0, "down")] == [(64, 64)] * 8


@pytest.mark.parametrize(
    ("architecture", "extra", "words"),
    [
        ("gpt_nope", {}, r"architecture 'gpt_nope' is not supported .supported: llama, qwen3moe"),
        ("llama", {"llama.expert_count": 8}, "expert_count = 8 .Mixtral"),
        ("llama", {"llama.attention.sliding_window": 128}, "sliding_window = 128"),
        ("llama", {"llama.logit_scale": 2}, r"llama\.logit_scale = 2 is not supported"),
        ("llama", {"llama.attention.value_length": 8}, r"value_length = 8"),
    ],
)
def test_gguf_metadata_that_is_not_implemented_is_refused(tmp_path, architecture, extra, words):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    write_llama_fields(writer, {**SIZES, "num_hidden_layers": 1})
    for key, value in extra.items():
        writer.kv_data[0].pop(key, None)
        writer.add_uint32(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((320, 64), dtype=np.float32))
    finish(writer, path)
    with pytest.raises(ModelError, match=words):
        spec(open_checkpoint(path))


def test_a_folder_with_both_formats_is_refused(llama, tmp_path):
    for path in llama.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tiny_gguf(tmp_path / "x.gguf", num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"both safetensors and x\.gguf"):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path / "model.safetensors").kind == "safetensors"
    assert open_checkpoint(tmp_path / "x.gguf").kind == "gguf"


def test_configs_of_released_models_are_understood():
    """Fields as published in Qwen3-30B-A3B's config.json; only the tensors are absent here."""
    config = json.loads(
        """{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout":
        0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim":
        128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta":
        1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings":
        false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
        "use_sliding_window": false,
        "vocab_size": 151936}"""
    )
    with pytest.raises(ModelError, match="embed is missing"):
        spec(Checkpoint(Path(), "safetensors", config, []))
