"""Damaged settings and tensors: a ModelError or a tensor, never another exception."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kt.errors import ModelError
from kt.weights.dequantize import dequantize
from kt.weights.formats.assemble import assemble
from kt.weights.safetensors_file import read_file
from tests.quantised import SCHEMES
from tests.unit.test_quantised_formats import NAME, matrix, read

JUNK: list[Any] = [0, -1, 3, 2.5, 10**30, True, "x", "re:(", [], [0], [-1, 128], ["re:["], {"a": 1}]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def replaced(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    at: Any = result
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return result


@pytest.mark.parametrize("name", SCHEMES)
def test_damaged_settings(tmp_path, name):
    scheme = SCHEMES[name]
    parts, values = scheme.write(matrix(24, 160), np.random.default_rng(1))
    save_file({NAME + ending: part for ending, part in parts.items()}, tmp_path / "x.safetensors")
    tensors = read_file(tmp_path / "x.safetensors")
    refused = 0
    for path in leaves(scheme.config):
        for junk in JUNK:
            try:
                damaged = {"quantization_config": replaced(scheme.config, path, junk)}
                found = assemble(tmp_path, tensors, damaged)
            except ModelError:
                refused += 1
                continue
            for tensor in found:  # what is accepted means something
                if tensor.quant is not None:
                    assert dequantize(tensor).shape == values.shape
    assert refused >= len(JUNK)


@pytest.mark.parametrize("name", SCHEMES)
def test_damaged_tensors(tmp_path, name):
    scheme = SCHEMES[name]
    parts, _ = scheme.write(matrix(24, 160), np.random.default_rng(1))
    for ending, part in parts.items():
        damaged = [part.reshape(-1), part.reshape(1, 1, *part.shape), part.reshape(-1)[:0]]
        damaged += [torch.ones(part.shape).to(dtype) for dtype in (torch.bool, torch.float64)]
        damaged += [torch.ones(part.shape).to(dtype) for dtype in (torch.int16, torch.bfloat16)]
        for other in damaged:
            tensors = {NAME + e: other if e == ending else p for e, p in parts.items()}
            try:
                found = read(tmp_path, scheme.config, tensors)
            except ModelError:
                continue
            for tensor in found.values():
                if tensor.quant is not None:
                    assert dequantize(tensor).shape == tensor.shape
