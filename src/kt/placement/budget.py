"""How many bytes a model takes in memory: packed weights, KV pages, working memory. Arithmetic
only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kt.errors import ModelError
from kt.models.spec import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec
from kt.models.tensors import PARTS, expected_tensors
from kt.units import MIB
from kt.weights.act_order import is_shuffled
from kt.weights.checkpoint import Checkpoint
from kt.weights.iq import IQ_DECODERS
from kt.weights.tensor import Tensor

KvFormat = Literal["bf16", "int8"]
KV_FORMATS: Final[tuple[KvFormat, ...]] = ("bf16", "int8")
"""What keys and values are stored in (kt_kv_format in native/include/kt.h, upper case)."""

PAGE_TOKENS: Final = 32
"""Positions a KV page holds (kt_page_tokens in native/include/kt.h)."""

PROCESS_BYTES: Final = 256 * MIB
"""Python, its libraries and the tokenizer. Measured: 92 MiB with a vocabulary of 49 thousand;
the rest is for larger vocabularies and requests."""

GRAMMAR_BYTES: Final = 20 * MIB
GRAMMAR_TOKEN_BYTES: Final = 1024
"""The process that tries grammars, and more of it for each token of the vocabulary. Measured:
16 MiB with 260 tokens, 49 with 49 thousand, 126 with 152 thousand, 190 with 262 thousand."""

PANEL_ROWS: Final = 16


@dataclass(frozen=True)
class Packing:
    """Bytes of one panel of 16 rows: `per_k` for each (padded) column, `per_group` for each `group`
    columns."""

    per_k: int
    group: int = 32
    per_group: int = 0


SUPER: Final = 256
"""Columns of a super-block; rows are whole ones."""
ROW: Final = 1 << 30
"""One scale for a whole row."""

PACKINGS: Final[dict[str, Packing]] = {
    "F32": Packing(64),
    "F16": Packing(32),
    "BF16": Packing(32),
    "F8_G32": Packing(16, 32, 64),
    "F8_G128": Packing(16, 128, 64),
    "F8_ROW": Packing(16, ROW, 64),
    "F8_MX": Packing(16, 32, 16),
    "I8_G32": Packing(16, 32, 32),
    "I8_G64": Packing(16, 64, 32),
    "I8_G128": Packing(16, 128, 32),
    "I8_ROW": Packing(16, ROW, 64),
    "I6_K16": Packing(12, SUPER, 288),
    "I5_G32": Packing(10, 32, 32),
    "I5_G32M": Packing(10, 32, 64),
    "I5_K32M": Packing(10, SUPER, 320),
    "I4_G32": Packing(8, 32, 32),
    "I4_G64": Packing(8, 64, 32),
    "I4_G128": Packing(8, 128, 32),
    "I4_B32": Packing(8, 32, 32),
    "I4_B128": Packing(8, 128, 32),
    "I4_G32M": Packing(8, 32, 64),
    "I4_G64M": Packing(8, 64, 64),
    "I4_G128M": Packing(8, 128, 64),
    "I4_K32M": Packing(8, SUPER, 320),
    "I4_Z32": Packing(8, 32, 80),
    "I4_Z64": Packing(8, 64, 80),
    "I4_Z128": Packing(8, 128, 80),
    "I4_Z128H": Packing(8, 128, 48),
    "I4_NL": Packing(8, 32, 32),
    "I4_NLK": Packing(8, SUPER, 160),
    "F4_MX": Packing(8, 32, 16),
    "F4_NV": Packing(8, 32, 32),
    "I4_IQ3XXS": Packing(8, SUPER, 160),
    "I4_IQ3S": Packing(8, SUPER, 160),
    "I3_K16": Packing(6, SUPER, 288),
    "I3_IQ2XXS": Packing(6, SUPER, 160),
    "I3_IQ2": Packing(6, SUPER, 288),
    "I3_IQ1M": Packing(6, SUPER, 288),
    "I2_K16M": Packing(4, SUPER, 320),
    "I2_IQ1S": Packing(4, SUPER, 160),
}
"""The layout of native/formats/layout.h, in bytes. A test compares it with kt_packed_bytes."""


def packed_bytes(packed_format: str, n: int, k: int) -> int:
    """Bytes of a matrix [n, k] packed as `packed_format`: panels of 16 rows, each a multiple of 64
    bytes.

    Raises ModelError if the format does not exist or k is not whole groups of it.
    """
    packing = PACKINGS.get(packed_format)
    if packing is None:
        raise ModelError(f"no packed format is called {packed_format!r}")
    padded = _round_up(k, 32)
    if packing.group == SUPER and padded % SUPER:
        raise ModelError(f"{packed_format} needs rows of whole groups of {SUPER}, not {k}")
    panel = packing.per_k * padded + packing.per_group * -(-padded // packing.group)
    return -(-n // PANEL_ROWS) * _round_up(panel, 64)


FormatOf = Callable[[Tensor], str]


def native_format(tensor: Tensor) -> str:
    """The packed format that a tensor is loaded as when nothing else is asked for."""
    return tensor.packed_format


def weight_bytes(
    spec: ModelSpec, checkpoint: Checkpoint, format_of: FormatOf = native_format
) -> dict[str, int]:
    """Part of the model -> bytes of its packed weights; parts that the model does not have are left
    out."""
    parts = dict.fromkeys(
        ("embedding", "attention", "mlp", "router", "experts", "norms", "head"), 0
    )
    for role in expected_tensors(spec):
        part, tensor = _part(role), checkpoint.tensor(role)
        # Routers are float32 whatever the file holds: rounding would change which experts run.
        parts[part] += tensor_bytes(tensor, format_of if part != "router" else lambda _: "F32")
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, ExpertSpec):
            for part in PARTS:
                matrices = checkpoint.experts(index, part)
                parts["experts"] += sum(tensor_bytes(matrix, format_of) for matrix in matrices)
    return {name: count for name, count in parts.items() if count}


def order_bytes(spec: ModelSpec, checkpoint: Checkpoint) -> int:
    """Tables of the columns that matrices in act-order read: int32, one for all that read an input,
    of experts one each (engine/lowering.py).
    """
    inputs = [] if spec.tied_embeddings else [[checkpoint.tensor("lm_head")]]
    for index, layer in enumerate(spec.layers):
        inputs += [[checkpoint.tensor(f"layers.{index}.{name}")] for name in ("q", "o")]
        if isinstance(layer.mlp, ExpertSpec):
            inputs.append(list(checkpoint.experts(index, "gate")))
        else:
            inputs.append([checkpoint.tensor(f"layers.{index}.gate")])
    shuffled = [readers for readers in inputs if any(map(is_shuffled, readers))]
    return sum(4 * tensor.shape[1] for readers in shuffled for tensor in readers)


def decoded_wider(checkpoint: Checkpoint) -> dict[str, int]:
    """GGUF types whose values get a code each, of more bits than in the file -> bytes more."""
    more: dict[str, int] = {}
    tensors = [checkpoint.tensor(role) for role in checkpoint.roles]
    for layer in checkpoint.expert_layers:
        tensors += [matrix for part in PARTS for matrix in checkpoint.experts(layer, part)]
    for tensor in tensors:
        name = tensor.encoding.name
        if name in IQ_DECODERS:
            more[name] = more.get(name, 0) + tensor_bytes(tensor) - tensor.nbytes
    return dict(sorted(more.items()))


def tensor_bytes(tensor: Tensor, format_of: FormatOf = native_format) -> int:
    """Bytes of one tensor in memory: matrices packed, vectors as float32."""
    if len(tensor.shape) == 1:
        return 4 * tensor.shape[0]
    return packed_bytes(format_of(tensor), *tensor.shape)


def _part(role: str) -> str:
    if role in ("embed", "lm_head"):
        return {"embed": "embedding", "lm_head": "head"}[role]
    name = role.rsplit(".", 1)[-1] if not role.endswith(".bias") else role.split(".")[-2]
    if name in ("q", "k", "v", "o"):
        return "attention"
    if name in PARTS:
        return "mlp"
    return "router" if name == "router" else "norms"


def page_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one KV page in all layers together."""
    return sum(
        layer.attention.n_kv_heads * _head_page_bytes(layer.attention, kv_format)
        for layer in spec.layers
    )


def position_bytes(attention: AttentionSpec, kv_format: KvFormat) -> float:
    """Bytes of one layer's keys and values of a position."""
    return attention.n_kv_heads * _head_page_bytes(attention, kv_format) / PAGE_TOKENS


def _head_page_bytes(attention: AttentionSpec, kv_format: KvFormat) -> int:
    """Keys and values of a head in a page, padded to 32 dims (native/kernels/kv_pages.h)."""
    head = _round_up(attention.head_dim, 32)
    if kv_format == "bf16":
        return 2 * PAGE_TOKENS * head * 2
    # Codes; a float16 scale per key and 32 dims; a float32 scale per value.
    return 2 * _round_up(16 * (head + head // 32 * 2), 64) + PAGE_TOKENS * (head + 4)


def pages_for(tokens: int) -> int:
    """KV pages that `tokens` positions of one sequence take."""
    return -(-tokens // PAGE_TOKENS)


def working_bytes(
    spec: ModelSpec, *, max_batch_tokens: int, max_logits: int, threads: int, gathers: bool = False
) -> int:
    """What a forward pass holds beside weights and KV pages, at most (Program::reserve in
    native/runtime/build.h).

    Per row of the batch: float32 slots; inputs of matrices once more in up to two encodings of
    together 7 bytes; queries; and for every chosen expert its intermediate values and its output.
    Per row with logits: the row that they are computed from, and the logits, here and in Python.
    gathers: inputs are copied in another order, for every chosen expert.
    """
    widest = max(_layer_row_bytes(spec.hidden, layer) for layer in spec.layers)
    row = (4 * 2 + 7) * spec.hidden + widest
    if gathers:
        row += max(_gathered_row_bytes(spec.hidden, layer) for layer in spec.layers)
    logits_row = (4 * 2 + 7) * spec.hidden + 2 * 4 * spec.vocab
    head = max(_round_up(layer.attention.head_dim, 32) for layer in spec.layers)
    splits = 16_384 * (head + 2) * 4  # partial results of attention over parts of a long context
    # 96 query rows and their results; scores and probabilities of up to 32 of them and 256 keys.
    scratch = threads * (96 * head * 8 + 32 * (256 * 8 + head * 4) + 3 * head * 4)
    return max_batch_tokens * row + splits + scratch + max_logits * logits_row


def _layer_row_bytes(hidden: int, layer: LayerSpec) -> int:
    attention = layer.attention
    wide = attention.n_heads * _round_up(attention.head_dim, 32)
    narrow = attention.n_kv_heads * _round_up(attention.head_dim, 32)
    rope = 4 * attention.rope.dims
    attended = 4 * (wide + 2 * narrow) + (4 + 7 + 4) * wide + rope
    if not isinstance(layer.mlp, ExpertSpec):
        return attended + 4 * layer.mlp.intermediate
    router, expert = layer.mlp.router, layer.mlp.mlp
    return attended + 4 * router.n_experts + router.top_k * 4 * (expert.intermediate + hidden)


def _gathered_row_bytes(hidden: int, layer: LayerSpec) -> int:
    chosen = layer.mlp.router.top_k if isinstance(layer.mlp, ExpertSpec) else 1
    wide = layer.attention.n_heads * layer.attention.head_dim
    return 4 * _round_up(max(chosen * hidden, wide), 32)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
