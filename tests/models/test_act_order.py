"""GPTQ in act-order: what has one order and what has not, memory, conversion, calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kt.convert.calibration import Calibration
from kt.convert.convert import Conversion
from kt.engine.cpu_executor import CpuExecutor
from kt.engine.lowering import lower
from kt.kernels.library import load
from kt.machine.survey import survey
from kt.models.families import spec
from kt.placement.budget import order_bytes
from kt.placement.plan import plan
from kt.units import Choice
from kt.weights.checkpoint import Checkpoint, open_checkpoint
from tests import quantised
from tests.executors import NATIVE, all_logits, executor, one_sequence
from tests.moe_reference import Reference, assert_like, reference_of, relative_error
from tests.quantised import SCHEMES, SIZES, quantise
from tests.tiny import tiny_llama, tiny_qwen3_moe

SCHEME = SCHEMES["gptq_act_order"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path, Reference]:
    """The quantised checkpoint, the same values in float32, and what transformers makes of them."""
    folder = tmp_path_factory.mktemp("act_order")
    plain = tiny_qwen3_moe(folder / "model", seed=3, **SIZES)
    paths = quantise(plain, folder / "to", SCHEME)
    return *paths, reference_of(paths[1])


def formats(checkpoint: Checkpoint) -> dict[str, set[str]]:
    """Part -> the packed formats of its matrices in all layers."""
    found: dict[str, set[str]] = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for part in "qkvo":
            name = checkpoint.tensor(f"layers.{layer}.{part}").packed_format
            found.setdefault(part, set()).add(name)
        for part in ("gate", "up", "down"):
            for matrix in checkpoint.experts(layer, part):
                found.setdefault(part, set()).add(matrix.packed_format)
    return found


def test_orders_differ_from_one_input_to_the_next(made):
    """Or the other tests would say little."""
    tensors = load_file(made[0] / "model.safetensors")
    orders = {name: t.numpy().tobytes() for name, t in tensors.items() if name.endswith("g_idx")}
    assert len(orders) == 2 * (4 + 3 * 4)
    assert len(set(orders.values())) == 2 * (2 + 2 * 4)


@pytest.mark.parametrize("variant", NATIVE[:1])
def test_a_token_alone_and_in_any_chunk_has_the_same_bits(made, variant):
    folder, _, reference = made
    results = []
    for chunk, threads in ((0, 1), (7, 2), (1, 3)):
        built = executor(folder, variant, threads=threads)
        results.append(all_logits(built, reference.ids, chunk=chunk))
        built.close()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_the_plan_counts_the_tables_of_orders(kind, made, tmp_path):
    """As the step program holds them."""
    folder = made[0]
    if kind == "dense":
        folder, _ = quantise(tiny_llama(tmp_path / "model", seed=3), tmp_path / "to", SCHEME)
    checkpoint = open_checkpoint(folder)
    model = spec(checkpoint)
    kept = lower(model, checkpoint, load(NATIVE[0])).keep
    held = sum(array.nbytes for array in kept if array.dtype == np.int32)
    assert order_bytes(model, checkpoint) == held > 0
    decided = plan(
        model, checkpoint, survey(gpus=False), model="m", variant=Choice(NATIVE[0], "a test")
    )
    assert decided.parts["orders"] == held


def test_the_plan_counts_the_gathered_inputs(made):
    checkpoint, machine = open_checkpoint(made[0]), survey(gpus=False)
    model = spec(checkpoint)
    variant = Choice(NATIVE[0], "a test")
    decided = plan(model, checkpoint, machine, model="m", variant=variant)
    built = CpuExecutor(
        model,
        checkpoint,
        load(NATIVE[0]),
        cpus=decided.worker_cpus.value,
        n_pages=decided.n_pages.value,
        max_batch_tokens=decided.max_batch_tokens,
        max_logits=decided.max_logits,
    )
    held = built.memory
    built.close()
    assert held["working"] <= decided.parts["working"] <= 1.6 * held["working"]
    assert decided.notes == ()


def test_matrices_of_one_input_and_several_orders_are_float32(made, tmp_path, monkeypatch):
    """Exact, and the user is told. o and down read alone, and keep their bits."""
    monkeypatch.setattr(quantised, "_input_of", lambda module: module)
    plain = tiny_qwen3_moe(tmp_path / "model", seed=3, **SIZES)
    folder, dequantised = quantise(plain, tmp_path / "to", SCHEME)
    checkpoint = open_checkpoint(folder)
    wanted = {part: {"F32"} for part in ("q", "k", "v", "gate", "up")}
    assert formats(checkpoint) == wanted | {"o": {"I4_Z32"}, "down": {"I4_Z32"}}
    (note,) = checkpoint.notes
    assert note.startswith(f"{2 * (3 + 2 * 4)} matrices are in act-order")
    assert_like(reference_of(dequantised), folder, NATIVE[0])


def test_one_expert_of_its_own_order_makes_them_all_float32(made, tmp_path):
    """They are one operation. So are gate and up; down is another matter."""
    folder, dequantised, _ = made
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.2.up_proj."
    group = tensors[name + "g_idx"]
    straight = torch.argsort(group, stable=True)
    assert not torch.equal(straight, torch.arange(len(group)))
    words = tensors[name + "qweight"].numpy().view(np.uint32)
    codes = (words[:, None] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None] & 15).reshape(
        -1, words.shape[1]
    )
    # The same matrix with two columns of different groups in each other's place.
    first, second = straight[0].item(), straight[-1].item()
    codes[[first, second]] = codes[[second, first]]
    group = group.clone()
    group[[first, second]] = group[[second, first]]
    packed = quantised.words(np.ascontiguousarray(codes.T)).T
    tensors[name + "qweight"] = torch.from_numpy(np.ascontiguousarray(packed))
    tensors[name + "g_idx"] = group
    values = load_file(dequantised / "model.safetensors")
    matrix = values[name + "weight"].clone()
    matrix[:, [first, second]] = matrix[:, [second, first]]
    values[name + "weight"] = matrix
    paths = tmp_path / "quantised", tmp_path / "plain"
    for source, path, parts in zip((folder, dequantised), paths, (tensors, values), strict=True):
        path.mkdir()
        (path / "config.json").write_bytes((source / "config.json").read_bytes())
        save_file(parts, path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(paths[0])
    for layer, wanted in ((0, "I4_Z32"), (1, "F32")):
        for part in ("gate", "up"):
            assert {m.packed_format for m in checkpoint.experts(layer, part)} == {wanted}
        assert {m.packed_format for m in checkpoint.experts(layer, "down")} == {"I4_Z32"}
    assert_like(reference_of(paths[1]), paths[0], NATIVE[0])


def test_an_expert_that_was_not_quantised(made, tmp_path):
    """Up is float32 in all experts then, in the order of the file, and gate has to follow."""
    folder, dequantised, _ = made
    tensors = load_file(folder / "model.safetensors")
    values = load_file(dequantised / "model.safetensors")
    module = "model.layers.1.mlp.experts.2.up_proj."
    for ending in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[module + ending]
    rounded = values[module + "weight"].bfloat16()
    tensors[module + "weight"], values[module + "weight"] = rounded, rounded.float()
    paths = tmp_path / "quantised", tmp_path / "plain"
    for source, path, parts in zip((folder, dequantised), paths, (tensors, values), strict=True):
        path.mkdir()
        (path / "config.json").write_bytes((source / "config.json").read_bytes())
        save_file(parts, path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(paths[0])
    for part, wanted in (("gate", "F32"), ("up", "F32"), ("down", "I4_Z32")):
        assert {m.packed_format for m in checkpoint.experts(1, part)} == {wanted}
    assert_like(reference_of(paths[1]), paths[0], NATIVE[0])


def test_groups_of_unequal_size_are_float32(tmp_path):
    """Nobody writes them, and nobody may read them wrongly."""
    plain = tiny_llama(tmp_path / "model", hidden_size=64, intermediate_size=96)
    folder, _ = quantise(plain, tmp_path / "to", SCHEME)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("o_proj.g_idx")]:
        tensors[name][:] = 1
        tensors[name][::5] = 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensor("layers.0.o").packed_format == "F32"
    assert checkpoint.tensor("layers.0.q").packed_format == "I4_Z32"


def test_a_conversion_is_like_the_model(made, tmp_path):
    """native keeps codes and orders; other formats round the values as those of any matrix."""
    folder, _, reference = made
    # int8 rounds weights and activations to 8 bits.
    for target, limit in (("native", 2e-2), ("int8", 3e-2)):
        to = tmp_path / target
        Conversion(open_checkpoint(folder), target).run(to, load(NATIVE[0]), threads=2)
        kept = {"I4_Z32"} if target == "native" else {"I8_G32"}
        assert set().union(*formats(open_checkpoint(to)).values()) == kept
        assert_like(reference, to, NATIVE[0], limit)


def test_calibration_sees_the_inputs_in_the_order_of_the_file(made, tmp_path):
    """As it does in the model of the same values in float32."""
    text = tmp_path / "text"
    text.write_text("the lazy dog and the other quick brown fox jumps over the system user " * 9)
    measured = [
        Calibration(text, load(NATIVE[0])).measure(open_checkpoint(path), survey(gpus=False))
        for path in made[:2]
    ]
    assert measured[0].keys() == measured[1].keys()
    for role, counts in measured[0].items():
        assert relative_error(counts, measured[1][role]) < 0.03
    gate = open_checkpoint(made[0]).experts(0, "gate")[0]
    assert gate.packed_format == "I4_Z32"


def test_the_head_may_be_in_act_order_too(made, tmp_path):
    """It runs on the rows that want logits."""
    folder, dequantised, _ = made
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    monkey = quantised.READS
    quantised.READS = "lm_head"
    parts, values = SCHEME.write(head.double().numpy(), np.random.default_rng(5))
    quantised.READS = monkey
    tensors |= {"lm_head" + ending: part for ending, part in parts.items()}
    plain = load_file(dequantised / "model.safetensors")
    plain["lm_head.weight"] = torch.from_numpy(values.astype(np.float32))
    for source, name, all_of in ((folder, "q", tensors), (dequantised, "p", plain)):
        (tmp_path / name).mkdir()
        config = (source / "config.json").read_bytes()
        (tmp_path / name / "config.json").write_bytes(config)
        save_file(all_of, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path / "q")
    assert checkpoint.tensor("lm_head").packed_format == "I4_Z32"
    reference = reference_of(tmp_path / "p")
    built = executor(tmp_path / "q", NATIVE[0])
    got = built.forward(one_sequence(reference.ids, logits=[3, 40, 74]))
    assert relative_error(got, reference.logits[[3, 40, 74]]) < 2e-2
    built.close()
