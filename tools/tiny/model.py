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


ROOM = 64
"""Rows that an expert's tokens are padded to."""


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


class Scatter(torch.autograd.Function):
    """y of `rows` rows, y[places] = x and zero elsewhere; the places are all different. The way
    back is a gather, which is many times faster than torch's adding up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros((rows, *x.shape[1:])).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(0, places), None, None


class Gather(torch.autograd.Function):
    """x[places], the way back of Scatter."""

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


@dataclass(frozen=True)
class Documents:
    """Where attention finds the documents of a batch; see packing.Batch."""

    groups: list[tuple[int, int]]
    places: Tensor
    numbers: Tensor
    cos: Tensor
    sin: Tensor

    @property
    def rows(self) -> int:
        """Places in all groups."""
        return sum(count * length for count, length in self.groups)


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
        states = Scatter.apply(torch.cat((q, k, v), 1), documents.places, documents.rows)
        outputs, at = [], 0
        for count, length in documents.groups:
            group = states[at : at + count * length].unflatten(0, (count, length)).transpose(1, 2)
            at += count * length
            q, k, v = group.split((heads, kv, kv), 1)
            k, v = (part.repeat_interleave(heads // kv, 1) for part in (k, v))
            y = attend(q, k, v)
            outputs.append(y.transpose(1, 2).flatten(2).flatten(0, 1))
        y = Gather.apply(torch.cat(outputs), documents.places)
        return F.linear(y, self.o.to(x.dtype))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention [..., length, size]. Written out: on a CPU, in bfloat16 and for short texts
    torch's own takes three times as long to go back.
    """
    future = torch.full((q.shape[-2], q.shape[-2]), float("-inf"), dtype=q.dtype).triu_(1)
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2) + future
    return torch.softmax(scores, -1) @ v


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
        self.gate_up = nn.Parameter(torch.empty(count, 2, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.int4 = False

    def forward(self, x: Tensor, documents: Documents) -> tuple[Tensor, Tensor, Tensor]:
        """x [tokens, hidden] -> output, and how unevenly experts are used (1: evenly, and more
        otherwise): over all tokens, the load-balancing loss, and within each document, their mean.
        """
        count = self.router.shape[0]
        scores = torch.softmax(F.linear(x.float(), self.router), -1)
        best, chosen = scores.topk(self.top_k, -1)
        counts = torch.bincount(chosen.flatten(), minlength=count)
        places, rooms = _rooms(chosen.flatten(), counts)
        copies = x.unsqueeze(1).expand(-1, self.top_k, -1).flatten(0, 1)
        y = self._all(Scatter.apply(copies, places, sum(rooms)), rooms)
        y = Gather.apply(y, places).unflatten(0, (-1, self.top_k))
        best = (best / best.sum(-1, keepdim=True)).to(y.dtype)
        load = counts / chosen.numel()
        uneven = count * (load * scores.mean(0)).sum()
        return (y * best.unsqueeze(-1)).sum(1), uneven, self._within(scores, chosen, documents)

    def _within(self, scores: Tensor, chosen: Tensor, documents: Documents) -> Tensor:
        """The load-balancing loss of each document, mean over tokens."""
        count, numbers = self.router.shape[0], documents.numbers
        rows = int(numbers[-1]) + 1
        sizes = torch.bincount(numbers, minlength=rows).unsqueeze(1)
        means = scores.new_zeros(rows, count).index_add(0, numbers, scores) / sizes
        flat = numbers.repeat_interleave(self.top_k) * count + chosen.flatten()
        loads = torch.bincount(flat, minlength=rows * count).view(rows, count) / sizes / self.top_k
        return count * (loads * means * sizes).sum() / len(numbers)

    def _all(self, x: Tensor, rooms: list[int]) -> Tensor:
        """Every expert on its own rows of x: rooms[0] for the first, and so on."""
        gate_up, down = self.gate_up, self.down
        if self.int4:
            gate_up, down = rounded_to_int4(gate_up), rounded_to_int4(down)
        gate_up, down = gate_up.flatten(1, 2).to(x.dtype), down.to(x.dtype)
        outputs = []
        for rows, first, second in zip(x.split(rooms), gate_up, down, strict=True):
            gate, up = F.linear(rows, first).chunk(2, -1)
            outputs.append(F.linear(F.silu(gate) * up, second))
        return torch.cat(outputs)


def _rooms(chosen: Tensor, counts: Tensor) -> tuple[Tensor, list[int]]:
    """A place for each choice, those of an expert together; and the rows for each expert, a
    multiple of ROOM, because torch compiles code for every new shape of a product.
    """
    rooms = (counts + ROOM - 1) // ROOM * ROOM
    order = chosen.argsort(stable=True)
    shift = (rooms.cumsum(0) - rooms) - (counts.cumsum(0) - counts)
    places = torch.empty_like(order)
    places[order] = torch.arange(order.numel()) + shift[chosen[order]]
    return places, rooms.tolist()


class Layer(nn.Module):
    """Attention and experts, each behind a norm and added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.attention = Attention(shape)
        self.post_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.experts = Experts(shape)

    def forward(self, x: Tensor, documents: Documents) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.attention(self.input_norm(x), documents)
        y, balance, focus = self.experts(self.post_norm(x), documents)
        return x + y, balance, focus


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

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """States behind the last norm [tokens, hidden], and the means of what Experts tells."""
        x = F.embedding(torch.from_numpy(batch.ids), self.embed).to(self.dtype)
        documents = self._documents(batch)
        balance, focus = torch.zeros(()), torch.zeros(())
        for layer in self.layers:
            x, uneven, within = layer(x, documents)
            balance, focus = balance + uneven, focus + within
        return self.norm(x), balance / len(self.layers), focus / len(self.layers)

    def logits(self, states: Tensor) -> Tensor:
        """Scores of every token, float32."""
        return F.linear(states, self.embed.to(states.dtype)).float()

    def _documents(self, batch: Batch) -> Documents:
        half = self.shape.head_dim // 2
        rates = self.shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = (torch.from_numpy(batch.positions).unsqueeze(-1) * rates).unsqueeze(1)
        return Documents(
            batch.groups,
            torch.from_numpy(batch.places),
            torch.from_numpy(batch.positions == 0).cumsum(0) - 1,
            angles.cos().to(self.dtype),
            angles.sin().to(self.dtype),
        )
