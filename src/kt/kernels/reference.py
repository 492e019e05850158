"""Every operation of the step program in plain torch: the oracle of the native kernels.

Functions compute in the dtype of their first argument: float32 as the kernels do, float64 where the
oracle should be sharper than what it judges. T tokens, H query heads, G key/value heads, D head
dims, N outputs, K inputs, E experts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kt.models.spec import RopeSpec, RouterSpec

BLOCK = 32  # K of one activation scale


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x [..., K] / sqrt(mean(x^2) + eps) * gain [K] (Zhang and Sennrich 2019)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K], weight [N, K], bias [N] -> [T, N]."""
    y = x @ weight.to(x.dtype).T
    return y if bias is None else y + bias


def rope_tables(rope: RopeSpec, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, dims/2] float32 of positions [T], times the attention factor."""
    angles = positions.float()[:, None] * torch.tensor(rope.inv_freq, dtype=torch.float32)
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def rotate(x: Tensor, rope: RopeSpec, positions: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x [T, heads, D] at positions [T]: the leading rope.dims
    of every head turn, the rest stays.
    """
    cosine, sine = (table.to(x.dtype)[:, None] for table in rope_tables(rope, positions))
    head, tail = x[..., : rope.dims], x[..., rope.dims :]
    if rope.interleaved:
        a, b = head[..., 0::2], head[..., 1::2]
    else:
        a, b = head.chunk(2, dim=-1)
    turned = a * cosine - b * sine, b * cosine + a * sine
    joined = torch.stack(turned, -1).flatten(-2) if rope.interleaved else torch.cat(turned, -1)
    return torch.cat((joined, tail), -1)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int = 0) -> Tensor:
    """Causal attention of a whole sequence: q [T, H, D], k and v [T, G, D] -> [T, H, D].

    H is a multiple of G; query head h reads key head h // (H/G). A query sees `window` keys, itself
    included; 0: all before it.
    """
    tokens, groups = q.shape[0], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    hidden = (distance < 0) | ((distance >= window) if window else torch.tensor(False))
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def self_attention(
    qkv: Tensor,
    n_heads: int,
    n_kv_heads: int,
    *,
    scale: float,
    rope: RopeSpec | None = None,
    window: int = 0,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    kv_format: str = "bf16",
) -> Tensor:
    """The ATTENTION operation from position 0: qkv [T, (H + 2G) * D] -> [T, H * D].

    Per-head norms (gains [D]), rotation, then attention. kv_format: what keys and values pass
    through, as in the KV pages: "bf16", "int8" (then queries are 8-bit too), or "" for neither.
    """
    tokens = qkv.shape[0]
    heads = qkv.reshape(tokens, n_heads + 2 * n_kv_heads, -1)
    q, k, v = heads.tensor_split((n_heads, n_heads + n_kv_heads), dim=1)
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    if rope is not None and rope.dims:
        positions = torch.arange(tokens)
        q, k = rotate(q, rope, positions), rotate(k, rope, positions)
    if kv_format == "bf16":
        k, v = round_bf16(k), round_bf16(v)
    elif kv_format == "int8":
        factor = scale / math.log(2)  # queries are rounded as they give scores in units of log 2
        flat = round_activations((q * factor).flatten(1).reshape(-1, q.shape[-1]))
        q = flat.reshape(q.shape) / factor
        k, v = round_int8_keys(k), round_int8_values(v)
    return attention(q, k, v, scale, window).reshape(tokens, -1)


def route(logits: Tensor, spec: RouterSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Router logits [T, E] -> ids [T, top_k] best first (ties: lowest id), weights [T, top_k].

    bias [E] takes part in the choice only.
    """
    if spec.score == "softmax":
        scores = logits if spec.softmax_after else logits.softmax(-1)
    elif spec.score == "sigmoid":
        scores = logits.sigmoid()
    else:
        scores = functional.softplus(logits).sqrt()
    choice = scores if bias is None else scores + bias
    if spec.n_groups > 1:
        choice = _best_groups(choice, spec)
    ids = _top(choice, spec.top_k)
    weights = scores.gather(1, ids)
    if spec.softmax_after:
        weights = weights.softmax(-1)
    if spec.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * spec.scale


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x [T, K], gate and up [N, K], down [K, N]: down(silu(gate x) * up x) [T, K]."""
    return linear(functional.silu(linear(x, gate)) * linear(x, up), down)


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate: Sequence[Tensor],
    up: Sequence[Tensor],
    down: Sequence[Tensor],
) -> Tensor:
    """Sum over a token's experts of weight * mlp: x [T, K], ids and weights [T, top_k], E matrices
    each as in mlp -> [T, K].
    """
    out = torch.zeros(x.shape[0], down[0].shape[0], dtype=x.dtype)
    for expert in sorted(set(ids.flatten().tolist())):
        rows, choice = (ids == expert).nonzero(as_tuple=True)
        y = mlp(x[rows], gate[expert], up[expert], down[expert])
        out.index_add_(0, rows, y * weights[rows, choice, None].to(x.dtype))
    return out


def round_bf16(x: Tensor) -> Tensor:
    """Nearest bfloat16 values, in x's dtype."""
    return x.bfloat16().to(x.dtype)


def round_int8_keys(k: Tensor) -> Tensor:
    """Keys [T, G, D] as int8 KV pages hold them: a float16 scale per 32 dims."""
    head = k.shape[-1]
    blocks = functional.pad(k, (0, -head % BLOCK)).reshape(*k.shape[:2], -1, BLOCK)
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().to(k.dtype)
    rounded = (blocks * _inverse(scale)).round().clamp(-127, 127) * scale
    return rounded.flatten(-2)[..., :head]


def round_int8_values(v: Tensor) -> Tensor:
    """Values [T, G, D] as int8 KV pages hold them: a float32 scale per head."""
    scale = (v.abs().amax(-1, keepdim=True) / 127).float().to(v.dtype)
    codes: Tensor = (v * _inverse(scale)).round()
    return codes * scale


def round_weights(w: Tensor, packed_format: str) -> Tensor:
    """What kt_pack makes of float32 w [N, K], as float32. packed_format: kt.h's name without KT_,
    one of those that float sources go into.

    Integer formats have one float16 scale per group of K, and codes rounded to nearest, ties to
    even. The columns that the last group lacks count as zeros.
    """
    if packed_format in ("F32", "F16", "BF16"):
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        return w.to(dtype[packed_format]).float()
    n, k = w.shape
    match = re.fullmatch(r"(I[48])_G(\d+)(M?)", packed_format)
    if match is None:
        raise ValueError(f"floats are not rounded to {packed_format}")
    kind, group, minimum = match.groups()
    groups = functional.pad(w, (0, -k % int(group))).reshape(n, -1, int(group))
    return _ROUNDERS[kind + minimum](groups).reshape(n, -1)[:, :k]


def round_activations(x: Tensor) -> Tensor:
    """x [T, K] as the integer kernels read it: signed 8-bit codes and a float32 scale per 32 K."""
    tokens, k = x.shape
    blocks = functional.pad(x, (0, -k % BLOCK)).reshape(tokens, -1, BLOCK)
    peak = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks * _inverse(peak / 127)).round()
    return (codes * (peak / 127)).reshape(tokens, -1)[:, :k]


def _best_groups(choice: Tensor, spec: RouterSpec) -> Tensor:
    """choice [T, E] with -infinity outside the best groups."""
    groups = choice.reshape(choice.shape[0], spec.n_groups, -1)
    two = spec.group_score == "top2"
    score = groups.topk(2, dim=-1).values.sum(-1) if two else groups.amax(-1)
    kept = torch.zeros_like(score, dtype=torch.bool)
    kept.scatter_(1, _top(score, spec.top_groups), True)
    return groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)


def _top(x: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of the last dimension, best first, ties to the lowest."""
    order: Tensor = x.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count]


def _half(x: Tensor) -> Tensor:
    return x.half().float()


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)


def _round_i8(blocks: Tensor) -> Tensor:
    scale = _half(blocks.abs().amax(-1, keepdim=True) / 127)
    return ((blocks * _inverse(scale) + 128).round().clamp(0, 255) - 128) * scale


def _round_i4(blocks: Tensor) -> Tensor:
    """The value of largest magnitude (the first of them) lies on code 0, which is -8."""
    peak = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = _half(peak / -8)
    return ((blocks * _inverse(scale) + 8).round().clamp(0, 15) - 8) * scale


def _round_i4_min(blocks: Tensor) -> Tensor:
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    scale, minimum = _half((high - low) / 15), _half(low)
    codes = ((blocks - minimum) * _inverse(scale)).round().clamp(0, 15)
    return codes * scale + minimum


_ROUNDERS = {"I8": _round_i8, "I4": _round_i4, "I4M": _round_i4_min}
