"""compressed-tensors: INT4 packed into words, INT8, FP8, MXFP4, MXFP8 and NVFP4, each with its
settings per group of modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from kt.errors import ModelError
from kt.weights.encodings import INT8
from kt.weights.fields import Fields
from kt.weights.formats import fp8, int4, mxfp4, nvfp4
from kt.weights.formats.module import Module, Scheme, groups, scale_type, whole_rows
from kt.weights.quant import Quant
from kt.weights.tensor import Tensor

ENDINGS = {
    "_packed": "data",
    "_global_scale": "factor",
    "_scale": "scale",
    "_zero_point": "zeros",
    "_shape": "shape",
    "_g_idx": "order",
}


@dataclass(frozen=True)
class _Group:
    """Settings for the modules that `targets` name. is_default: for all linear layers that no
    group names.
    """

    targets: tuple[re.Pattern[str], ...]
    is_default: bool
    weights: Fields

    def names(self, module: str) -> bool:
        """Whether a target names this very module."""
        return any(target.match(module) for target in self.targets)


def _pattern(target: str) -> re.Pattern[str]:
    """What matches the names of modules. Class names ("Linear") match none."""
    try:
        return re.compile(target[3:] if target.startswith("re:") else re.escape(target) + "$")
    except re.error:
        raise ModelError(f"quantization_config: target {target!r} is no pattern") from None


def scheme(fields: Fields) -> Scheme:
    """quant_method compressed-tensors."""
    for key in ("ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio"):
        fields.get(key)
    fields.get("version")
    fields.get("format")
    Fields(fields.section("sparsity_config"), "sparsity_config").expect("format", "dense")
    found = fields.section("config_groups")
    if not found:
        raise fields.refuse("config_groups", "settings for at least one group are needed")
    listed = [_group(name, group) for name, group in found.items()]
    fields.finish()
    return Scheme(ENDINGS, partial(_build, listed=listed))


def _group(name: str, settings: Any) -> _Group:
    fields = Fields(settings if isinstance(settings, dict) else {}, name)
    for key in ("input_activations", "output_activations", "format"):
        fields.get(key)
    weights, targets = fields.section("weights"), fields.texts("targets")
    fields.finish()
    return _Group(
        tuple(map(_pattern, targets)), "Linear" in targets, Fields(weights, f"{name}.weights")
    )


def _build(module: Module, *, listed: list[_Group]) -> Tensor:
    name = module.name.removesuffix(".weight")
    named = [group for group in listed if group.names(name)]
    named = named or [group for group in listed if group.is_default]
    if not named:
        raise ModelError(f"no group of quantization_config is for {name}")
    weights = named[0].weights
    key = (weights.text("type", "int"), weights.integer("num_bits", 8))
    build = _BUILDERS.get(key)
    if build is None:
        raise weights.refuse("num_bits", f"{key[0]} of {key[1]} bits")
    return build(module, weights)


def _float8(module: Module, weights: Fields) -> Tensor:
    strategy = weights.get("strategy")
    if strategy in ("tensor", "channel"):
        return fp8.build(module, block=None)
    if strategy == "block":
        return fp8.build(module, block=fp8.block_shape(weights, "block_structure"))
    if strategy == "group":
        block = (1, weights.integer("group_size"))
        return fp8.build(module, block=block, powers=True)
    raise weights.refuse("strategy", "tensor, channel, block or group")


def _float4(module: Module, weights: Fields) -> Tensor:
    if weights.get("group_size") == 16:
        return nvfp4.build(module, divides=True)
    if weights.get("group_size") != 32:
        raise weights.refuse("group_size", "16 (NVFP4) or 32 (MXFP4)")
    *lead, n, pairs = module.codes("U8").shape
    return mxfp4.build(module, (*lead, n, pairs * 2))


def _int8(module: Module, weights: Fields) -> Tensor:
    shape = module.codes("I8").shape
    if weights.get("strategy") not in ("tensor", "channel"):
        raise weights.refuse("strategy", "tensor or channel for 8 bits")
    if not weights.flag("symmetric", True):
        raise weights.refuse("symmetric", "8 bits with zero points")
    scale = module.part("scale", "scale")
    block = whole_rows(scale, shape)
    scales = module.scales(scale, groups(shape, block))
    return module.tensor(INT8, shape, Quant("I8_ROW", scales, scale_type(scale), block))


def _int4(module: Module, weights: Fields) -> Tensor:
    strategy = weights.get("strategy")
    if strategy not in ("group", "channel"):
        raise weights.refuse("strategy", "group or channel for 4 bits")
    group = weights.integer("group_size") if strategy == "group" else 0
    return int4.build(module, group=group, symmetric=weights.flag("symmetric", True))


_BUILDERS = {
    ("float", 8): _float8,
    ("float", 4): _float4,
    ("int", 8): _int8,
    ("int", 4): _int4,
}
