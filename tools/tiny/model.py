"""The model in torch, for training: the architecture of qwen3_moe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.tiny.packing import Batch


@dataclass(frozen=True)
class Shape:
    """Sizes, named as in config.json of qwen3_moe."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    num_experts: int = 16
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 128
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1024


GROUP = 32
"""Weights that share a scale in the shipped INT4 experts."""


def int4_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., n, k] -> codes -8..7 (same shape) and bfloat16-exact scales [..., n, k / 32]."""
    groups = weight.unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-8).bfloat16().float()
    codes = (groups / scales).round_().clamp_(-8, 7)
    return codes.flatten(-2), scales.squeeze(-1)


def rounded_to_int4(weight: Tensor) -> Tensor:
    """The weight as INT4 holds it; its gradient passes straight through."""
    with torch.no_grad():
        codes, scales = int4_codes(weight)
        error = (codes.unflatten(-1, (-1, GROUP)) * scales.unsqueeze(-1)).flatten(-2) - weight
    return weight + error


class Norm(nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Rows(torch.autograd.Function):
    """x[index], where x is y[inverse] of the result y: so that the way back is a gather as well,
    which is many times faster than adding up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradients[0].index_select(0, inverse), None, None


@dataclass(frozen=True)
class Documents:
    """Where attention finds the documents of a batch; see packing.Batch."""

    groups: list[tuple[int, int]]
    padded: Tensor
    places: Tensor
    cos: Tensor
    sin: Tensor


class Attention(nn.Module):
    """Grouped-query attention with a norm on each head's queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        heads, kv, size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.qkv = nn.Parameter(torch.empty((heads + 2 * kv) * size, shape.hidden_size))
        self.o = nn.Parameter(torch.empty(shape.hidden_size, heads * size))
        self.q_norm = Norm(size, shape.rms_norm_eps)
        self.k_norm = Norm(size, shape.rms_norm_eps)

    def forward(self, x: Tensor, documents: Documents) -> Tensor:
        """x [tokens, hidden]."""
        heads, kv = self.shape.num_attention_heads, self.shape.num_key_value_heads
        states = F.linear(x, self.qkv.to(x.dtype)).unflatten(-1, (heads + 2 * kv, -1))
        q, k, v = states.split((heads, kv, kv), 1)
        q, k = rotate(self.q_norm(q), documents), rotate(self.k_norm(k), documents)
        states = Rows.apply(torch.cat((q, k, v), 1), documents.padded, documents.places)
        outputs, at = [], 0
        for count, length in documents.groups:
            group = states[at : at + count * length].unflatten(0, (count, length)).transpose(1, 2)
            at += count * length
            q, k, v = group.split((heads, kv, kv), 1)
            k, v = (part.repeat_interleave(heads // kv, 1) for part in (k, v))
            y = attend(q, k, v)
            outputs.append(y.transpose(1, 2).flatten(2).flatten(0, 1))
        y = Unpad.apply(torch.cat(outputs), documents.places)
        return F.linear(y, self.o.to(x.dtype))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention [..., length, size]. Written out: on a CPU, in bfloat16 and for short texts
    torch's own takes three times as long to go back.
    """
    future = torch.full((q.shape[-2], q.shape[-2]), float("-inf"), dtype=q.dtype).triu_(1)
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2) + future
    return torch.softmax(scores, -1) @ v


class Unpad(torch.autograd.Function):
    """x[places]; the places are all different, and the others' gradient is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = x.shape[0]
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        gradient = gradients[0].new_zeros((ctx.rows, *gradients[0].shape[1:]))
        return gradient.index_copy_(0, places, gradients[0]), None


def rotate(x: Tensor, documents: Documents) -> Tensor:
    """Rotary embedding of x [tokens, heads, size], its halves paired."""
    first, second = x.chunk(2, -1)
    cos, sin = documents.cos, documents.sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Experts(nn.Module):
    """A router and its experts. int4: train with the rounding that the shipped weights have."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top_k, count = shape.num_experts_per_tok, shape.num_experts
        hidden, width = shape.hidden_size, shape.moe_intermediate_size
        self.router = nn.Parameter(torch.empty(count, hidden))
        self.gate_up = nn.Parameter(torch.empty(count, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.int4 = False
        self.chosen = torch.empty(0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] -> output, and the load-balancing loss (1 where all is even)."""
        count = self.router.shape[0]
        scores = torch.softmax(F.linear(x.float(), self.router), -1)
        best, chosen = scores.topk(self.top_k, -1)
        self.chosen = chosen.detach()
        order = chosen.flatten().argsort(stable=True)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel())
        counts = torch.bincount(chosen.flatten(), minlength=count)
        copies = x.unsqueeze(1).expand(-1, self.top_k, -1).flatten(0, 1)
        y = self._all(Rows.apply(copies, order, back), counts.tolist())
        y = Rows.apply(y, back, order).unflatten(0, (-1, self.top_k))
        best = (best / best.sum(-1, keepdim=True)).to(y.dtype)
        load = counts / chosen.numel()
        return (y * best.unsqueeze(-1)).sum(1), count * (load * scores.mean(0)).sum()

    def _all(self, x: Tensor, counts: list[int]) -> Tensor:
        """Every expert on its own rows of x, which are sorted by expert."""
        gate_up, down = self.gate_up, self.down
        if self.int4:
            gate_up, down = rounded_to_int4(gate_up), rounded_to_int4(down)
        parts = zip(
            x.split(counts), gate_up.to(x.dtype).unbind(), down.to(x.dtype).unbind(), strict=True
        )
        outputs = []
        for rows, first, second in parts:
            gate, up = F.linear(rows, first).chunk(2, -1)
            outputs.append(F.linear(F.silu(gate) * up, second))
        return torch.cat(outputs)


class Layer(nn.Module):
    """Attention and experts, each behind a norm and added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.attention = Attention(shape)
        self.post_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.experts = Experts(shape)

    def forward(self, x: Tensor, documents: Documents) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.input_norm(x), documents)
        y, balance = self.experts(self.post_norm(x))
        return x + y, balance


class Model(nn.Module):
    """The whole model, in `dtype` arithmetic on float32 parameters."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embed = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                out = name.endswith(("attention.o", "experts.down"))
                depth = (2 * self.shape.num_hidden_layers) ** -0.5 if out else 1.0
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 * depth)
        nn.init.normal_(self.embed, std=0.05)

    def use_int4(self) -> None:
        """From now on the experts' weights are rounded as they will be shipped."""
        for layer in self.layers:
            layer.experts.int4 = True

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """States behind the last norm [tokens, hidden], and the mean load-balancing loss."""
        x = F.embedding(torch.from_numpy(batch.ids), self.embed).to(self.dtype)
        documents = self._documents(batch)
        balance = torch.zeros(())
        for layer in self.layers:
            x, uneven = layer(x, documents)
            balance = balance + uneven
        return self.norm(x), balance / len(self.layers)

    def logits(self, states: Tensor) -> Tensor:
        """Scores of every token, float32."""
        return F.linear(states, self.embed.to(states.dtype)).float()

    def _documents(self, batch: Batch) -> Documents:
        half = self.shape.head_dim // 2
        rates = self.shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = (torch.from_numpy(batch.positions).unsqueeze(-1) * rates).unsqueeze(1)
        return Documents(
            batch.groups,
            torch.from_numpy(batch.padded),
            torch.from_numpy(batch.places),
            angles.cos().to(self.dtype),
            angles.sin().to(self.dtype),
        )
