"""However a file lays experts out, the same matrices come back; what could be read in two ways is
refused.
"""

import numpy as np
import pytest

from kt.errors import ModelError
from kt.weights.dequantize import dequantize
from kt.weights.encodings import BY_NAME
from kt.weights.expert_layout import expert_matrices
from kt.weights.names import Place, place
from kt.weights.tensor import Tensor

E, INNER, HIDDEN = 4, 6, 8
RNG = np.random.default_rng(0)
VALUES = {
    "gate": RNG.normal(size=(E, INNER, HIDDEN)).astype(np.float32),
    "up": RNG.normal(size=(E, INNER, HIDDEN)).astype(np.float32),
    "down": RNG.normal(size=(E, HIDDEN, INNER)).astype(np.float32),
}


def _tensor(name, values):
    data = np.ascontiguousarray(values, dtype=np.float32)
    return Tensor(name, data.shape, BY_NAME["F32"], data.reshape(-1).view(np.uint8))


def _parts(tensors):
    found = {name: place(name) for name in tensors}
    return {(at.part, at.index): _tensor(name, tensors[name]) for name, at in found.items()}


def _per_expert(pattern, names):
    return {pattern.format(e, names[part]): VALUES[part][e] for part in VALUES for e in range(E)}


def _fused():
    return np.concatenate([VALUES["gate"], VALUES["up"]], axis=1)


LAYOUTS = {
    "per expert": _per_expert(
        "model.layers.3.mlp.experts.{}.{}_proj.weight", {"gate": "gate", "up": "up", "down": "down"}
    ),
    "w1 w3 w2": _per_expert(
        "model.layers.3.block_sparse_moe.experts.{}.{}.weight",
        {"gate": "w1", "up": "w3", "down": "w2"},
    ),
    "stacks": {f"model.layers.3.mlp.experts.{part}_proj": VALUES[part] for part in VALUES},
    "gguf stacks": {f"blk.3.ffn_{part}_exps.weight": VALUES[part] for part in VALUES},
    "gguf per expert": _per_expert(
        "blk.3.ffn_{1}.{0}.weight", {"gate": "gate", "up": "up", "down": "down"}
    ),
    "fused stacks": {
        "model.layers.3.mlp.experts.gate_up_proj": _fused(),
        "model.layers.3.mlp.experts.down_proj": VALUES["down"],
    },
    "gguf fused stacks": {
        "blk.3.ffn_gate_up_exps.weight": _fused(),
        "blk.3.ffn_down_exps.weight": VALUES["down"],
    },
    "fused per expert": {
        **{f"layers.3.mlp.experts.{e}.gate_up_proj.weight": _fused()[e] for e in range(E)},
        **{f"layers.3.mlp.experts.{e}.down_proj.weight": VALUES["down"][e] for e in range(E)},
    },
}


def _all(parts, part, model_type="qwen3_moe"):
    return expert_matrices(parts, part, layer=3, model_type=model_type)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_every_layout_gives_the_same_matrices(layout, part):
    matrices = _all(_parts(LAYOUTS[layout]), part)
    assert len(matrices) == E
    for index, matrix in enumerate(matrices):
        assert matrix.shape == VALUES[part][index].shape
        np.testing.assert_array_equal(dequantize(matrix), VALUES[part][index])


def test_quantized_stacks_are_cut_at_block_rows():
    raw = RNG.integers(0, 256, (E, 2 * INNER, 34), dtype=np.uint8)
    stack = Tensor("s", (E, 2 * INNER, 32), BY_NAME["Q8_0"], raw.reshape(-1))
    down = Tensor("d", (E, 32, INNER), BY_NAME["F32"], np.zeros(E * 32 * INNER * 4, dtype=np.uint8))
    up = _all({("gate_up", None): stack, ("down", None): down}, "up")
    assert up[2].shape == (INNER, 32)
    assert up[2].data.tobytes() == raw[2, INNER:].tobytes()


def test_fused_tensors_of_a_family_with_unknown_order_are_refused():
    with pytest.raises(ModelError, match="order that is not known for 'gpt_oss'"):
        _all(_parts(LAYOUTS["fused stacks"]), "gate", "gpt_oss")


def test_transposed_stacks_are_refused():
    swapped = {
        "layers.3.mlp.experts.gate_up_proj": _fused().transpose(0, 2, 1),
        "layers.3.mlp.experts.down_proj": VALUES["down"].transpose(0, 2, 1),
    }
    for part in VALUES:
        with pytest.raises(ModelError, match="transposed"):
            _all(_parts(swapped), part)


def test_the_other_matrix_decides_where_one_is_square():
    # 2I = H: gate_up is square either way round, down is not.
    gate_up, down = np.zeros((E, 8, 8)), np.zeros((E, 8, 4))
    names = ("layers.3.mlp.experts.gate_up_proj", "layers.3.mlp.experts.down_proj")
    assert _all(_parts(dict(zip(names, (gate_up, down), strict=True))), "gate")[0].shape == (4, 8)
    with pytest.raises(ModelError, match="transposed"):
        _all(_parts(dict(zip(names, (gate_up, down.transpose(0, 2, 1)), strict=True))), "gate")


def test_a_missing_expert_is_named():
    tensors = dict(LAYOUTS["per expert"])
    del tensors["model.layers.3.mlp.experts.1.up_proj.weight"]
    with pytest.raises(ModelError, match=r"up is missing for expert\(s\) \[1\]"):
        _all(_parts(tensors), "up")


def test_a_part_that_is_there_twice_is_refused():
    both = {**LAYOUTS["per expert"], **LAYOUTS["stacks"]}
    with pytest.raises(ModelError, match="both as a stack and per expert"):
        _all(_parts(both), "gate")
    both = {**LAYOUTS["stacks"], **LAYOUTS["fused stacks"]}
    with pytest.raises(ModelError, match="both alone and fused"):
        _all(_parts(both), "gate")


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("model.embed_tokens.weight", Place("embed")),
        ("token_embd.weight", Place("embed")),
        ("lm_head.weight", Place("lm_head")),
        ("output.weight", Place("lm_head")),
        ("model.layers.12.self_attn.q_proj.bias", Place("layers.12.q.bias", 12)),
        ("blk.12.attn_output.weight", Place("layers.12.o", 12)),
        ("blk.0.ffn_gate_inp.weight", Place("layers.0.router", 0)),
        ("model.layers.0.mlp.gate.weight", Place("layers.0.router", 0)),
        ("model.layers.0.mlp.experts.17.down_proj.weight", Place("", 0, "down", 17)),
        ("model.layers.01.mlp.gate.weight", None),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", None),
        ("visual.patch_embed.weight", None),
    ],
)
def test_names_have_places(name, want):
    assert place(name) == want
