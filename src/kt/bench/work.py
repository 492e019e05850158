"""What a model's forward pass reads and computes, counted from its shapes: bytes of packed weights
and KV pages, and operations by instruction kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kt.bench.formats import Peak, attention_operations, of_packed
from kt.models.spec import AttentionSpec, ExpertSpec, ModelSpec
from kt.models.tensors import PARTS, expected_tensors
from kt.placement.budget import KvFormat, packed_bytes, position_bytes
from kt.weights.checkpoint import Checkpoint
from kt.weights.tensor import Tensor


@dataclass
class Load:
    """Bytes, and operations of each kind (a multiplication and an addition are two)."""

    nbytes: float = 0.0
    operations: dict[Peak, float] = field(default_factory=dict)

    def add(self, other: Load, *, times: float = 1, tokens: float = 1) -> None:
        """`other` read `times` times and computed for `tokens` tokens."""
        self.nbytes += other.nbytes * times
        for kind, count in other.operations.items():
            self.operations[kind] = self.operations.get(kind, 0.0) + count * tokens


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer; `one`: of an expert, for a token."""

    count: int
    top_k: int
    one: Load

    def active(self, tokens: int) -> float:
        """How many experts `tokens` tokens choose together: exact for one token, for more what is
        expected when every expert is chosen equally often."""
        return float(self.count * (1 - (1 - self.top_k / self.count) ** tokens))


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence in a forward pass: `count` of them, the first at position `first`."""

    first: int
    count: int


@dataclass(frozen=True)
class Step:
    """A forward pass by part: "dense" matrices, "experts", "head", "attention" (its bytes are those
    of KV pages)."""

    parts: dict[str, Load]

    @property
    def total(self) -> Load:
        """All parts together."""
        result = Load()
        for part in self.parts.values():
            result.add(part)
        return result


def combined(steps: Sequence[Step]) -> Step:
    """Several passes as one."""
    parts: dict[str, Load] = {}
    for step in steps:
        for name, part in step.parts.items():
            parts.setdefault(name, Load()).add(part)
    return Step(parts)


class ModelWork:
    """The work of a model's forward passes. Token embeddings (one row a token) and norms are left
    out: they are thousandths."""

    def __init__(
        self, spec: ModelSpec, checkpoint: Checkpoint, kv_format: KvFormat = "bf16"
    ) -> None:
        self._kv_format: KvFormat = kv_format
        self._attention = [layer.attention for layer in spec.layers]
        self._dense = Load()
        for role, shape in expected_tensors(spec).items():
            if len(shape) == 2 and role not in ("embed", "lm_head"):
                tensor = checkpoint.tensor(role)
                # Routers are computed in float32 whatever the file holds.
                self._dense.add(_matrix(tensor, "F32" if role.endswith(".router") else ""))
        self._head = _matrix(checkpoint.tensor("embed" if spec.tied_embeddings else "lm_head"))
        self._experts = [
            _experts(checkpoint, index, layer.mlp)
            for index, layer in enumerate(spec.layers)
            if isinstance(layer.mlp, ExpertSpec)
        ]

    def step(self, spans: Sequence[Span], logits: int) -> Step:
        """A pass over `spans` with `logits` rows of logits."""
        tokens = sum(span.count for span in spans)
        dense, experts, head, attention = Load(), Load(), Load(), Load()
        dense.add(self._dense, tokens=tokens)
        for layer in self._experts:
            experts.add(layer.one, times=layer.active(tokens), tokens=tokens * layer.top_k)
        if logits:
            head.add(self._head, tokens=logits)
        for layer_attention in self._attention:
            for span in spans:
                attention.add(_attended(layer_attention, span, self._kv_format))
        parts = {"dense": dense, "experts": experts, "head": head, "attention": attention}
        return Step({name: part for name, part in parts.items() if part.nbytes})


def _matrix(tensor: Tensor, packed_format: str = "") -> Load:
    n, k = tensor.shape
    packed_format = packed_format or tensor.packed_format
    kind = of_packed(packed_format).peak
    return Load(packed_bytes(packed_format, n, k), {kind: 2 * n * k})


def _experts(checkpoint: Checkpoint, layer: int, spec: ExpertSpec) -> Experts:
    one = Load()
    for part in PARTS:
        one.add(_matrix(checkpoint.experts(layer, part)[0]))
    return Experts(spec.router.n_experts, spec.router.top_k, one)


def _attended(attention: AttentionSpec, span: Span, kv_format: KvFormat) -> Load:
    """Keys and values of the positions that the span sees, read once, and every query times every
    key it sees: two operations for the score and two for the value, a dim."""
    last = span.first + span.count
    seen = [min(position + 1, attention.window or last) for position in range(span.first, last)]
    positions = min(last, (attention.window or last) + span.count - 1)
    nbytes = positions * position_bytes(attention, kv_format)
    pairs = sum(seen) * attention.n_heads
    return Load(nbytes, attention_operations(kv_format, pairs * attention.head_dim))
