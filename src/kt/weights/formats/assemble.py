"""The tensors of a quantised safetensors checkpoint, put together: codes with their scales.

config.json's quantization_config says which scheme it is; every scheme is one file beside this one
and one row of SCHEMES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kt.errors import ModelError
from kt.weights.fields import Fields
from kt.weights.formats import awq, compressed, fp8, gptq, modelopt, mxfp4
from kt.weights.formats.module import Module, Scheme
from kt.weights.tensor import Tensor

SCHEMES: Final[dict[str, Callable[[Fields], Scheme]]] = {
    "fp8": fp8.scheme,
    "fbgemm_fp8": fp8.scheme,
    "mxfp8": fp8.mx_scheme,
    "compressed-tensors": compressed.scheme,
    "gptq": gptq.scheme,
    "awq": awq.scheme,
    "mxfp4": mxfp4.scheme,
    "modelopt": modelopt.scheme,
}

_CODES: Final = ("F8_E4M3", "I8", "U8")
"""Dtypes that mean nothing without a scale."""

# Scales of activations and of cached keys and values: kt rounds neither to the formats they are
# for.
_UNUSED: Final = re.compile(
    r".*[._](?:input_scale|input_global_scale|input_zero_point|output_scale|activation_scale"
    r"|[qkv]_scale)"
)


def assemble(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> list[Tensor]:
    """`tensors` with codes and scales joined. Raises one ModelError that lists every fault."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return list(tensors.values())
    scheme = find_scheme(settings)
    modules, rest = _modules(tensors, scheme)
    faults: list[str] = []
    for module in modules:
        try:
            rest.append(scheme.build(module))
        except ModelError as error:
            faults.append(error.message)
    if faults:
        more = [f"and {len(faults) - 30} more"] if len(faults) > 30 else []
        raise ModelError(
            f"{path}: quantised tensors that cannot be read:\n  "
            + "\n  ".join([*faults[:30], *more]),
            hint="Is the checkpoint complete, and does its quantization_config belong to it?",
        )
    return rest


def find_scheme(settings: Any) -> Scheme:
    """The scheme of a quantization_config. Raises ModelError."""
    fields = Fields(settings if isinstance(settings, dict) else {}, "quantization_config")
    method = fields.get("quant_method")
    make = SCHEMES.get(method) if isinstance(method, str) else None
    if make is None:
        raise fields.refuse("quant_method", f"supported: {', '.join(SCHEMES)}")
    return make(fields)


def _modules(tensors: Mapping[str, Tensor], scheme: Scheme) -> tuple[list[Module], list[Tensor]]:
    """Modules that have codes, and the tensors that belong to none."""
    modules: dict[str, Module] = {}
    for name, tensor in tensors.items():
        if not _UNUSED.fullmatch(name):
            base, part = scheme.split(name)
            modules.setdefault(base, Module(base, {})).parts[part] = tensor
    whole, rest = [], []
    for module in modules.values():
        parts, alone = module.parts, module.parts.keys() == {"data"}
        if alone and module.name in tensors and parts["data"].encoding.name not in _CODES:
            rest.append(parts["data"])  # not quantised
        elif "data" in parts:
            whole.append(module)
        else:
            rest += parts.values()  # no part of a matrix; whoever places tensors refuses it
    return whole, rest
