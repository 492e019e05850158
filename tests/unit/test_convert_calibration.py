"""Calibration: the mean squares measured are those of transformers, and they change rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from kt.convert.calibration import CHUNK, FLOOR, PRIOR, Calibration, _counts
from kt.convert.convert import Conversion
from kt.errors import UsageError
from kt.kernels.library import load
from kt.machine.survey import survey
from kt.tokenizer import Tokenizer
from kt.weights.checkpoint import open_checkpoint
from tests.tiny import tiny_llama, tiny_qwen3_moe

TEXT = "the lazy dog and then the other quick brown fox jumps over the system user " * 24


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def hooked(folder: Path, modules: dict[str, str]) -> dict[str, np.ndarray]:
    """role -> mean square of each input of its module, 1 on average, over the text in parts."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sums: dict[str, torch.Tensor] = {}

    def note(role):
        def hook(_module, inputs):
            squares = inputs[0].reshape(-1, inputs[0].shape[-1]).double().square().sum(0)
            sums[role] = sums[role] + squares if role in sums else squares

        return hook

    for role, name in modules.items():
        model.get_submodule(name).register_forward_pre_hook(note(role))
    ids = Tokenizer.load(open_checkpoint(folder)).encode(TEXT)
    assert len(ids) > CHUNK  # more than one part
    with torch.no_grad():
        for first in range(0, len(ids), CHUNK):
            model(torch.tensor([ids[first : first + CHUNK]]))
    return {role: (total / total.mean()).numpy() for role, total in sums.items()}


@pytest.mark.parametrize("kind", ["llama", "moe"])
def test_inputs_are_measured_as_transformers_sees_them(kind, text, tmp_path):
    modules = {}
    for i in range(3):
        module = f"model.layers.{i}"
        for role in "qkvo":
            modules[f"layers.{i}.{role}"] = f"{module}.self_attn.{role}_proj"
        if kind == "moe" and i != 1:
            modules[f"layers.{i}.experts.up"] = f"{module}.mlp.gate"
        else:
            modules[f"layers.{i}.up"] = f"{module}.mlp.up_proj"
            modules[f"layers.{i}.down"] = f"{module}.mlp.down_proj"
    folder = tmp_path / kind
    if kind == "moe":
        tiny_qwen3_moe(folder, mlp_only_layers=[1])
    else:
        tiny_llama(folder)
    calibration = Calibration(text, load("avx2"))
    measured = calibration.measure(open_checkpoint(folder), survey(gpus=False))
    want = hooked(folder, modules)
    assert set(want) <= set(measured)
    for role, values in want.items():
        np.testing.assert_allclose(measured[role], np.maximum(values, FLOOR), rtol=0.05)
    distinct = {values.tobytes() for values in measured.values()}
    assert len(distinct) == 12  # inputs of q, of o, of up and of down in three layers


def expert_inputs(folder: Path, layer: int) -> np.ndarray:
    """Sums of squares of what each expert's down reads [experts, k]."""
    weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    base, seen = f"model.layers.{layer}.mlp", []
    model.get_submodule(base).register_forward_pre_hook(
        lambda _module, inputs: seen.append(inputs[0].reshape(-1, config.hidden_size))
    )
    ids = Tokenizer.load(open_checkpoint(folder)).encode(TEXT)
    with torch.no_grad():
        for first in range(0, len(ids), CHUNK):
            model(torch.tensor([ids[first : first + CHUNK]]))
    x = torch.cat(seen)
    chosen = (x @ weights[base + ".gate.weight"].T).topk(config.num_experts_per_tok).indices
    sums = []
    for expert in range(config.num_experts):
        rows = x[(chosen == expert).any(1)]
        gate, up = (weights[f"{base}.experts.{expert}.{p}_proj.weight"] for p in ("gate", "up"))
        hidden = torch.nn.functional.silu(rows @ gate.T) * (rows @ up.T)
        sums.append(hidden.double().square().sum(0).numpy())
    return np.stack(sums)


def test_every_expert_has_inputs_of_its_own(text, tmp_path):
    """Every token goes to all of them: where two nearly tie, rounding would choose."""
    folder = tiny_qwen3_moe(
        tmp_path / "moe", num_hidden_layers=2, num_experts=4, num_experts_per_tok=4
    )
    measured = Calibration(text, load("avx2")).measure(open_checkpoint(folder), survey(gpus=False))
    tokens = len(Tokenizer.load(open_checkpoint(folder)).encode(TEXT))
    sums = expert_inputs(folder, 1)
    sums += sums.sum(0) * PRIOR / (tokens * 4)
    want = np.maximum(sums / sums.mean(1, keepdims=True), FLOOR)
    assert want.shape == (4, 48)
    np.testing.assert_allclose(measured["layers.1.experts.down"], want, rtol=0.05)


def test_an_expert_that_no_token_chose_counts_as_the_layer_does():
    """No division by zero, and no zeros: they would free its codes of any sense."""
    squares = np.array([[4.0, 0, 2], [0, 0, 0]])
    counts = _counts(squares + squares.sum(0))
    np.testing.assert_allclose(counts, [[2, FLOOR, 1], [2, FLOOR, 1]])
    assert (_counts(np.zeros((2, 3))) == np.float32(FLOOR)).all()


def test_a_calibrated_conversion_errs_less_where_it_counts(text, tmp_path):
    source = tiny_llama(tmp_path / "model")
    library, machine = load("avx2"), survey(gpus=False)
    calibration = Calibration(text, library)
    importance = calibration.measure(open_checkpoint(source), machine)
    errors = {}
    for name, counts in (("plain", None), ("calibrated", importance)):
        dest = tmp_path / name
        conversion = Conversion(
            open_checkpoint(source), "int4", calibration=calibration if counts else None
        )
        manifest = conversion.run(dest, library, threads=1, importance=counts)
        assert (manifest["calibration"] is None) == (counts is None)
        errors[name] = [
            weighted_error(source, dest, part, importance[f"layers.1.{part}"])
            for part in ("up", "down")
        ]
    for plain, calibrated in zip(errors["plain"], errors["calibrated"], strict=True):
        assert calibrated < 0.99 * plain
    with pytest.raises(UsageError, match="holds another conversion: calibration"):
        Conversion(open_checkpoint(source), "int4").run(tmp_path / "calibrated", library, threads=1)


def weighted_error(source: Path, dest: Path, part: str, counts: np.ndarray) -> float:
    tensor = open_checkpoint(dest).tensor(f"layers.1.{part}")
    library = load("avx2")
    got = np.empty(tensor.shape, np.float32)
    library.unpack(
        library.new_pool(None, 1),
        tensor.packed_format,
        tensor.shape,
        library.ffi.from_buffer(tensor.data),
        got,
    )
    weights = load_file(source / "model.safetensors")
    want = weights[f"model.layers.1.mlp.{part}_proj.weight"].float().numpy()
    return float((counts * np.square(got.astype(np.float64) - want)).sum())


def test_texts_that_are_no_use(tmp_path):
    source = open_checkpoint(tiny_llama(tmp_path / "model"))
    short, binary = tmp_path / "short", tmp_path / "binary"
    short.write_text("the fox")
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="64 are the least"):
        Calibration(short, load("avx2")).measure(source, survey(gpus=False))
    with pytest.raises(UsageError, match="not UTF-8"):
        Calibration(binary, load("avx2"))
    with pytest.raises(UsageError, match="cannot be read"):
        Calibration(tmp_path / "missing", load("avx2"))
