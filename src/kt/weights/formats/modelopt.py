"""NVIDIA ModelOpt: NVFP4, and FP8 with one scale per matrix, per row, or per 32 columns."""

from __future__ import annotations

from functools import partial
from typing import Any

from kt.weights.fields import Fields
from kt.weights.formats import fp8, nvfp4
from kt.weights.formats.module import Scheme

ENDINGS = {"_scale_2": "factor", "_scale": "scale"}


def settings_of(older: dict[str, Any]) -> dict[str, Any]:
    """A quantization_config out of hf_quant_config.json, where ModelOpt wrote it earlier."""
    settings = older.get("quantization")
    return {"quant_method": "modelopt", **(settings if isinstance(settings, dict) else {})}


def scheme(fields: Fields) -> Scheme:
    """quant_method modelopt."""
    algorithm = fields.text("quant_algo")
    for key in ("ignore", "exclude_modules", "config_groups", "producer", "kv_cache_scheme"):
        fields.get(key)
    fields.expect("kv_cache_quant_algo", "FP8", "NVFP4")  # concerns the cache, not the weights
    fields.expect("group_size", 16, 32)
    builders = {
        "NVFP4": partial(nvfp4.build, divides=False),
        "FP8": partial(fp8.build, block=None),
        "FP8_PER_CHANNEL_PER_TOKEN": partial(fp8.build, block=None),
        "MXFP8": partial(fp8.build, block=(1, 32), powers=True),
    }
    if algorithm not in builders:
        raise fields.refuse("quant_algo", f"supported: {', '.join(builders)}")
    fields.finish()
    return Scheme(ENDINGS, builders[algorithm])
