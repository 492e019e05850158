"""Quantised safetensors checkpoints, written after each format's description, and the values that
they stand for in float64. Nothing here is shared with the readers.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Parts = dict[str, torch.Tensor]  # ending of the name -> tensor
Written = tuple[Parts, np.ndarray]  # and float64 values [n, k]
Write = Callable[[np.ndarray, np.random.Generator], Written]

READS = ""
"""What the matrix reads that `quantise` is about to write."""

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


@dataclass(frozen=True)
class Scheme:
    """config: quantization_config. write: a float matrix -> its tensors and their values. packed:
    the native format it becomes.
    """

    config: dict[str, Any]
    write: Write
    packed: str


def words(codes: np.ndarray, bits: int = 4) -> np.ndarray:
    """Codes [rows, n] -> int32 [rows, ceil(n bits / 32)], code j of a word at bit j * bits."""
    rows, n = codes.shape
    each = 32 // bits
    out = np.zeros((rows, -(-n // each)), np.uint32)
    for column in range(n):
        shift = np.uint32(bits * (column % each))
        out[:, column // each] |= codes[:, column].astype(np.uint32) << shift
    return out.view(np.int32)


def grouped(groups: np.ndarray, size: int, k: int) -> np.ndarray:
    """[n, groups] -> [n, k] for groups of `size` columns."""
    return groups[:, np.arange(k) // size]


def float8(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.float32)).to(torch.float8_e4m3fn)


def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype).contiguous()


def fp8(
    block: tuple[int, int] | None,
    *,
    ending: str = "_scale_inv",
    dtype: torch.dtype = torch.float32,
    rows: bool = True,
) -> Write:
    """block None: one scale per row, or (rows=False) per matrix. Scales of dtype uint8 and
    float8_e8m0fnu are powers of two.
    """

    def write(matrix: np.ndarray, _rng: np.random.Generator) -> Written:
        n, k = matrix.shape
        step = block or ((1, k) if rows else (n, k))
        shape = (-(-n // step[0]), -(-k // step[1]))
        scales = np.zeros(shape)
        for i in range(shape[0]):
            for j in range(shape[1]):
                part = matrix[i * step[0] : (i + 1) * step[0], j * step[1] : (j + 1) * step[1]]
                scales[i, j] = np.abs(part).max() / 448
        powers = dtype in (torch.uint8, torch.float8_e8m0fnu)
        if powers:
            exponents = np.ceil(np.log2(scales))
            scales = 2.0**exponents
            stored = tensor(exponents + 127, torch.uint8)
            stored = stored if dtype is torch.uint8 else stored.view(dtype)
        else:
            stored = tensor(scales, dtype)
            scales = stored.double().numpy()
        spread = scales[np.arange(n) // step[0]][:, np.arange(k) // step[1]]
        codes = float8(matrix / spread)
        if not rows:
            stored = stored.reshape(())
        return {".weight": codes, f".weight{ending}": stored}, codes.double().numpy() * spread

    return write


def int8(rows: bool = True, dtype: torch.dtype = torch.bfloat16) -> Write:
    def write(matrix: np.ndarray, _rng: np.random.Generator) -> Written:
        peak = np.abs(matrix).max(1, keepdims=True) if rows else np.abs(matrix).max()[None]
        stored = tensor(peak / 127, dtype)
        scales = stored.double().numpy()
        codes = np.clip(np.round(matrix / scales), -128, 127)
        return {".weight": tensor(codes, torch.int8), ".weight_scale": stored}, codes * scales

    return write


def _scales(matrix: np.ndarray, size: int) -> np.ndarray:
    """A scale for every group that lets 16 steps span its values."""
    _n, k = matrix.shape
    parts = [np.abs(matrix[:, at : at + size]).max(1) for at in range(0, k, size)]
    return np.stack(parts, 1) / 7.5 + 1e-6


def int4(
    size: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    zeros: bool = False,
    as_bytes: bool = False,
) -> Write:
    """compressed-tensors' pack-quantized; size 0: whole rows."""

    def write(matrix: np.ndarray, rng: np.random.Generator) -> Written:
        n, k = matrix.shape
        step = size or k
        stored = tensor(_scales(matrix, step), dtype)
        scales = stored.double().numpy()
        zero = rng.integers(0, 16, scales.shape) if zeros else np.full(scales.shape, 8)
        spread, zero_spread = grouped(scales, step, k), grouped(zero, step, k)
        codes = np.clip(np.round(matrix / spread) + zero_spread, 0, 15).astype(np.int64)
        packed = tensor(words(codes), torch.int32)
        parts = {
            ".weight_packed": packed.view(torch.uint8) if as_bytes else packed,
            ".weight_scale": stored,
            ".weight_shape": torch.tensor([n, k]),
        }
        if zeros:
            parts[".weight_zero_point"] = tensor(words(zero.T).T, torch.int32)
        return parts, spread * (codes - zero_spread)

    return write


def gptq(size: int, *, plus: int, zeros: bool, act_order: bool = False, bits: int = 4) -> Write:
    """plus: what the version adds to stored zero points; size -1: whole rows."""
    middle, top = (8, 15) if bits == 4 else (128, 255)

    def write(matrix: np.ndarray, rng: np.random.Generator) -> Written:
        _n, k = matrix.shape
        step = k if size == -1 else size
        # Eight bits: steps sixteen times finer.
        finer = 1 if bits == 4 else 16
        scales = tensor(_scales(matrix, step).T / finer, torch.float16)  # [groups, n]
        zero = np.full(scales.shape, middle)
        if zeros:
            zero = rng.integers(plus, 16 + plus, scales.shape)
        group = np.arange(k) // step
        if act_order:
            # Sorted by how large inputs are: matrices that read the same have the same order.
            group = np.random.default_rng(zlib.crc32(READS.encode())).permutation(group)
        spread, zero_spread = scales.double().numpy().T[:, group], zero.T[:, group]
        codes = np.clip(np.round(matrix / spread) + zero_spread, 0, top).astype(np.int64)
        parts = {
            ".qweight": tensor(words(codes, bits).T, torch.int32),
            ".qzeros": tensor(words(zero - plus, bits), torch.int32),
            ".scales": scales,
            ".g_idx": tensor(group, torch.int32),
        }
        return parts, spread * (codes - zero_spread)

    return write


def awq(size: int) -> Write:
    def write(matrix: np.ndarray, rng: np.random.Generator) -> Written:
        n, k = matrix.shape
        scales = tensor(_scales(matrix, size).T, torch.float16)  # [groups, n]
        zero = rng.integers(0, 16, scales.shape)
        spread = grouped(scales.double().numpy().T, size, k)
        zero_spread = grouped(zero.T, size, k)
        codes = np.clip(np.round(matrix / spread) + zero_spread, 0, 15).astype(np.int64)
        turn = (np.arange(0, n, 8)[:, None] + [0, 2, 4, 6, 1, 3, 5, 7]).ravel()
        parts = {
            ".qweight": tensor(words(codes.T[:, turn]), torch.int32),
            ".qzeros": tensor(words(zero[:, turn]), torch.int32),
            ".scales": scales,
        }
        return parts, spread * (codes - zero_spread)

    return write


def _fp4_codes(scaled: np.ndarray) -> np.ndarray:
    """The nearest FP4 code of every value."""
    return np.abs(scaled[..., None] - np.array(E2M1)).argmin(-1)


def _pairs(codes: np.ndarray) -> torch.Tensor:
    return tensor(codes[:, 0::2] | codes[:, 1::2] << 4, torch.uint8)


def mxfp4(*, blocks: bool = False) -> Write:
    def write(matrix: np.ndarray, rng: np.random.Generator) -> Written:
        n, k = matrix.shape
        exponents = np.round(np.log2(_scales(matrix, 32))) + rng.integers(0, 3, (n, -(-k // 32)))
        spread = grouped(2.0**exponents, 32, k)
        codes = _fp4_codes(matrix / spread)
        values = np.array(E2M1)[codes] * spread
        scales = tensor(exponents + 127, torch.uint8)
        if blocks:
            data = _pairs(codes).reshape(n, k // 32, 16)
            return {"_blocks": data, "_scales": scales}, values
        return {".weight_packed": _pairs(codes), ".weight_scale": scales}, values

    return write


def nvfp4(*, divides: bool) -> Write:
    def write(matrix: np.ndarray, _rng: np.random.Generator) -> Written:
        _n, k = matrix.shape
        wanted = _scales(matrix, 16)
        factor = np.float32(wanted.max() / 448)
        factor = np.float32(1 / factor) if divides else factor
        meant = 1 / np.float64(factor) if divides else np.float64(factor)
        scales = float8(wanted / meant)
        spread = grouped(scales.double().numpy(), 16, k) * meant
        codes = _fp4_codes(matrix / spread)
        data = ".weight_packed" if divides else ".weight"
        global_ = ".weight_global_scale" if divides else ".weight_scale_2"
        parts = {data: _pairs(codes), ".weight_scale": scales, global_: torch.tensor([factor])}
        if not divides:
            parts[global_] = torch.tensor(factor)
            parts[".input_scale"] = torch.tensor(0.5)
        return parts, np.array(E2M1)[codes] * spread

    return write


def compressed(
    bits: int, kind: str, strategy: str, *, form: str = "pack-quantized", **weights: Any
) -> dict[str, Any]:
    settings = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True}
    group = {"targets": ["Linear"], "weights": {**settings, **weights}, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
    }


def fp8_config(block: list[int] | None, **more: Any) -> dict[str, Any]:
    fixed = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    return {**fixed, "weight_block_size": block, "modules_to_not_convert": ["lm_head"], **more}


def gptq_config(size: int, version: str, **more: Any) -> dict[str, Any]:
    fixed = {"quant_method": "gptq", "bits": 4, "group_size": size, "checkpoint_format": version}
    return {**fixed, "sym": True, "desc_act": False, "damp_percent": 0.1, **more}


AWQ_CONFIG = {
    "quant_method": "awq",
    "bits": 4,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}

_SCALE = {"ending": "_scale"}
# Partial blocks of 128 in every matrix. Every token goes to all experts: where it may choose, one
# that rounding sends to another changes what all later tokens attend to.
SIZES = {
    "hidden_size": 192,
    "head_dim": 48,
    "moe_intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_experts": 4,
    "num_experts_per_tok": 4,
    "initializer_range": 0.06,
}

SCHEMES: dict[str, Scheme] = {
    "fp8_blocks": Scheme(fp8_config([128, 128]), fp8((128, 128)), "F8_G128"),
    "fp8_blocks_e8m0": Scheme(
        fp8_config([128, 128], scale_fmt="ue8m0"),
        fp8((128, 128), dtype=torch.float8_e8m0fnu),
        "F8_G128",
    ),
    "fp8_blocks_64_256": Scheme(fp8_config([64, 256]), fp8((64, 256)), "F8_G128"),
    "fp8_blocks_64": Scheme(fp8_config([64, 64]), fp8((64, 64), dtype=torch.bfloat16), "F8_G32"),
    "fp8_blocks_1_32": Scheme(fp8_config([1, 32]), fp8((1, 32)), "F8_G32"),
    "fp8_blocks_32_e8m0": Scheme(
        fp8_config([32, 32], scale_fmt="ue8m0"),
        fp8((32, 32), dtype=torch.float8_e8m0fnu),
        "F8_MX",
    ),
    "fp8_one_scale": Scheme(
        fp8_config(None, activation_scheme="static"), fp8(None, rows=False, **_SCALE), "F8_ROW"
    ),
    "ct_fp8_channel": Scheme(
        compressed(8, "float", "channel", form="float-quantized"),
        fp8(None, dtype=torch.bfloat16, **_SCALE),
        "F8_ROW",
    ),
    "ct_fp8_block": Scheme(
        compressed(8, "float", "block", form="float-quantized", block_structure=[128, 128]),
        fp8((128, 128), dtype=torch.bfloat16, **_SCALE),
        "F8_G128",
    ),
    "mxfp8": Scheme({"quant_method": "mxfp8"}, fp8((1, 32), dtype=torch.uint8), "F8_MX"),
    "ct_mxfp8": Scheme(
        compressed(8, "float", "group", form="mxfp8-quantized", group_size=32),
        fp8((1, 32), dtype=torch.uint8, **_SCALE),
        "F8_MX",
    ),
    "ct_int8": Scheme(compressed(8, "int", "channel", form="int-quantized"), int8(), "I8_ROW"),
    "ct_int8_one_scale": Scheme(
        compressed(8, "int", "tensor", form="int-quantized"),
        int8(rows=False, dtype=torch.float32),
        "I8_ROW",
    ),
    "ct_int4_32": Scheme(compressed(4, "int", "group", group_size=32), int4(32), "I4_B32"),
    "ct_int4_32_f16": Scheme(
        compressed(4, "int", "group", group_size=32), int4(32, dtype=torch.float16), "I4_G32"
    ),
    "ct_int4_64_zeros": Scheme(
        compressed(4, "int", "group", group_size=64, symmetric=False),
        int4(64, zeros=True),
        "I4_Z64",
    ),
    "ct_int4_128_bytes": Scheme(
        compressed(4, "int", "group", group_size=128), int4(128, as_bytes=True), "I4_B128"
    ),
    "ct_int4_64": Scheme(compressed(4, "int", "group", group_size=64), int4(64), "I4_B32"),
    "ct_int4_128_zeros": Scheme(
        compressed(4, "int", "group", group_size=128, symmetric=False),
        int4(128, zeros=True),
        "I4_Z128",
    ),
    "ct_int4_32_zeros_f16": Scheme(
        compressed(4, "int", "group", group_size=32, symmetric=False),
        int4(32, zeros=True, dtype=torch.float16),
        "I4_Z32",
    ),
    "ct_int4_channel": Scheme(compressed(4, "int", "channel"), int4(0), "I4_B128"),
    "ct_int4_channel_zeros": Scheme(
        compressed(4, "int", "channel", symmetric=False), int4(0, zeros=True), "I4_Z128"
    ),
    "ct_mxfp4": Scheme(
        compressed(4, "float", "group", form="mxfp4-pack-quantized", group_size=32),
        mxfp4(),
        "F4_MX",
    ),
    "ct_nvfp4": Scheme(
        compressed(4, "float", "tensor_group", form="nvfp4-pack-quantized", group_size=16),
        nvfp4(divides=True),
        "F4_NV",
    ),
    "modelopt_nvfp4": Scheme(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        nvfp4(divides=False),
        "F4_NV",
    ),
    "modelopt_fp8": Scheme(
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        fp8(None, rows=False, **_SCALE),
        "F8_ROW",
    ),
    "gptq_v1": Scheme(gptq_config(128, "gptq"), gptq(128, plus=1, zeros=False), "I4_G128"),
    "gptq_v2": Scheme(gptq_config(64, "gptq_v2"), gptq(64, plus=0, zeros=False), "I4_G64"),
    "gptq_v1_zeros": Scheme(
        gptq_config(32, "gptq", sym=False), gptq(32, plus=1, zeros=True), "I4_Z32"
    ),
    "gptq_v2_zeros": Scheme(
        gptq_config(64, "gptq_v2", sym=False), gptq(64, plus=0, zeros=True), "I4_Z64"
    ),
    "gptq_whole_rows": Scheme(
        gptq_config(-1, "gptq", desc_act=True, sym=False),
        gptq(-1, plus=1, zeros=True),
        "I4_Z128H",
    ),
    "gptq_act_order": Scheme(
        gptq_config(32, "gptq", desc_act=True, sym=False),
        gptq(32, plus=1, zeros=True, act_order=True),
        "I4_Z32",
    ),
    "gptq_act_order_128": Scheme(
        gptq_config(128, "gptq_v2", desc_act=True),
        gptq(128, plus=0, zeros=False, act_order=True),
        "I4_G128",
    ),
    "gptq_8": Scheme(
        gptq_config(128, "gptq", bits=8), gptq(128, plus=1, zeros=False, bits=8), "I8_G128"
    ),
    "gptq_8_act_order": Scheme(
        gptq_config(32, "gptq_v2", bits=8, desc_act=True),
        gptq(32, plus=0, zeros=False, bits=8, act_order=True),
        "I8_G32",
    ),
    "awq": Scheme({**AWQ_CONFIG, "group_size": 128}, awq(128), "I4_Z128H"),
    "awq_32": Scheme({**AWQ_CONFIG, "group_size": 32}, awq(32), "I4_Z32"),
}


def _input_of(module: str) -> str:
    """q, k and v have one input, and so have gate and up of a layer or of an expert."""
    parent, _, name = module.rpartition(".")
    shared = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "h", "up_proj": "h"}
    return f"{parent}.{shared.get(name, name)}"


def quantise(folder: Path, target: Path, scheme: Scheme, seed: int = 0) -> tuple[Path, Path]:
    """The checkpoint in `folder` with the linear layers of its decoder in `scheme`, and the same
    with the values it stands for in float32: (quantised, plain).
    """
    global READS
    rng = np.random.default_rng(seed)
    quantised: Parts = {}
    plain: Parts = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            quantised[name], plain[name] = weight, weight.float()
            continue
        READS = _input_of(module)
        parts, values = scheme.write(weight.double().numpy(), rng)
        quantised |= {module + ending: part for ending, part in parts.items()}
        plain[name] = torch.from_numpy(values.astype(np.float32))
    config = json.loads((folder / "config.json").read_text())
    paths = target / "quantised", target / "plain"
    for path, tensors in zip(paths, (quantised, plain), strict=True):
        path.mkdir(parents=True)
        for file in folder.glob("tok*"):
            shutil.copy(file, path)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (paths[1] / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    config["quantization_config"] = scheme.config
    (paths[0] / "config.json").write_text(json.dumps(config))
    return paths
