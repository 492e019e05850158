"""A model as data: a config.json in kt's words. Families produce it, executors read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding. `dims` leading dims of a head rotate; `inv_freq` has dims/2 entries
    (1/radian period).

    interleaved: pairs (2i, 2i+1), else (i, i + dims/2). attention_factor multiplies cos and sin.
    """

    dims: int
    inv_freq: tuple[float, ...]
    interleaved: bool = False
    attention_factor: float = 1.0


@dataclass(frozen=True)
class AttentionSpec:
    """Grouped-query attention. scale multiplies q.k; window counts keys, the token itself included
    (0: all).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    window: int = 0


MAX_EXPERTS = 1024
"""What a router may choose from; the kernels' own limit, as that of the groups."""
MAX_GROUPS = 64


@dataclass(frozen=True)
class RouterSpec:
    """From router logits to top_k experts and their weights; one router serves every family."""

    n_experts: int
    top_k: int
    score: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    softmax_after: bool = False
    normalise: bool = True
    selection_bias: bool = False
    n_groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    scale: float = 1.0


@dataclass(frozen=True)
class MlpSpec:
    """A gated MLP: down(act(gate x) * up x)."""

    intermediate: int
    activation: Literal["silu"] = "silu"


@dataclass(frozen=True)
class ExpertSpec:
    """Routed experts, each a gated MLP of `mlp.intermediate`."""

    router: RouterSpec
    mlp: MlpSpec


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: norm, attention, residual, norm, MLP or experts, residual."""

    attention: AttentionSpec
    mlp: MlpSpec | ExpertSpec


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model. context is the longest position the model was made for."""

    family: str
    hidden: int
    vocab: int
    context: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    embedding_scale: float = 1.0
