"""GGUF's IQ1, IQ2 and IQ3 types from the file to logits: the same model in float32, whose values
the gguf package decoded, is the other opinion.
"""

from __future__ import annotations

import re

import pytest

from kt.kernels.variants import select
from kt.machine.survey import survey
from kt.models.families import spec
from kt.placement.budget import weight_bytes
from kt.placement.plan import plan
from kt.units import Choice
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE, all_logits, executor
from tests.moe_reference import relative_error
from tests.tiny import tiny_gguf, tiny_qwen3_moe_gguf

TYPES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
IDS = [3, 17, 5, 99, 250, 31, 8, 64, 12]


@pytest.mark.parametrize("encoding", TYPES)
@pytest.mark.parametrize("make", [tiny_gguf, tiny_qwen3_moe_gguf])
def test_logits_are_those_of_the_same_values_in_float32(encoding, make, tmp_path):
    # Every token goes to all experts: rounding changes none of the choices.
    sizes = {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 4, "seed": 4}
    results = []
    for plain in (True, False):
        path = make(tmp_path / f"{plain}.gguf", encoding=encoding, plain=plain, **sizes)
        made = executor(path, NATIVE[0], pages=2, tokens=16)
        results.append(all_logits(made, IDS))
        made.close()
    assert relative_error(results[1], results[0]) < 2e-2


@pytest.mark.parametrize("encoding", TYPES)
def test_the_plan_says_what_they_take_beyond_the_file(encoding, tmp_path):
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "x.gguf", encoding=encoding))
    model, machine = spec(checkpoint), survey(gpus=False)
    best = select(machine.cpu, None).value.name
    made = plan(model, checkpoint, machine, model="x", variant=Choice(best, ""))
    (note,) = made.notes
    assert encoding in note
    weights = weight_bytes(model, checkpoint)
    more = sum(weights.values()) - checkpoint.tensor_bytes
    assert int(re.search(r"(\d+) bytes", note)[1]) == more > 0
    made = executor(tmp_path / "x.gguf", NATIVE[0], pages=2, tokens=16)
    assert made.memory["weights"] == sum(weights.values()) - weights["norms"]
    made.close()


def test_other_types_are_said_to_take_no_more(tmp_path):
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "x.gguf", encoding="Q4_K"))
    best = select(survey(gpus=False).cpu, None).value.name
    made = plan(
        spec(checkpoint), checkpoint, survey(gpus=False), model="x", variant=Choice(best, "")
    )
    assert made.notes == ()
