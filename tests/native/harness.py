"""Small step programs for kernel tests.

Inputs come in through EMBED: a KT_F32 matrix whose row i is the input row of token i. What integer
and bfloat16 kernels read is only written by NORM and ATTENTION, so a test puts a norm of gain 1 in
between and does the same to its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import gguf
import numpy as np
import numpy.typing as npt
import torch

from kt.kernels.library import Library, Source, load
from kt.kernels.variants import VARIANTS
from kt.machine.survey import survey
from kt.models.spec import RopeSpec, RouterSpec
from kt.weights.iq_grids import grid_codes
from tests.tiny import random_blocks

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

FLOAT_FORMATS = ("F32", "F16", "BF16")
GGUF_FORMATS = {  # packed format -> the GGUF type that it holds
    "I8_G32": "Q8_0",
    "I6_K16": "Q6_K",
    "I5_G32": "Q5_0",
    "I5_G32M": "Q5_1",
    "I5_K32M": "Q5_K",
    "I4_G32": "Q4_0",
    "I4_G32M": "Q4_1",
    "I4_K32M": "Q4_K",
    "I4_NL": "IQ4_NL",
    "I4_NLK": "IQ4_XS",
    "F4_MX": "MXFP4",
    "I3_K16": "Q3_K",
    "I2_K16M": "Q2_K",
    "I4_IQ3XXS": "IQ3_XXS",
    "I4_IQ3S": "IQ3_S",
    "I3_IQ2XXS": "IQ2_XXS",
    "I3_IQ2": "IQ2_XS",  # and IQ2_S
    "I3_IQ1M": "IQ1_M",
    "I2_IQ1S": "IQ1_S",
}
GROUPED = ("I8_G64", "I8_G128", "I4_G64", "I4_G128", "I4_G64M", "I4_G128M")  # rounded by kt only
FORMATS = (*FLOAT_FORMATS, *GGUF_FORMATS, *GROUPED)
TYPE_NUMBERS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
    "MXFP4": 39,
    "IQ2_XXS": 16,
    "IQ2_XS": 17,
    "IQ3_XXS": 18,
    "IQ1_S": 19,
    "IQ3_S": 21,
    "IQ2_S": 22,
    "IQ1_M": 29,
}
SCORES = {"softmax": "KT_SOFTMAX", "sigmoid": "KT_SIGMOID", "sqrt_softplus": "KT_SQRT_SOFTPLUS"}


def block_elements(kind: str) -> int:
    """Values in a block of a GGUF type."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]


def runnable() -> list[str]:
    """The variants that this CPU runs, and the AMX one over its software tile model where the rest
    of its instructions are there.
    """
    cpu = survey(gpus=False).cpu
    names = [variant.name for variant in VARIANTS if not variant.missing(cpu)]
    return names + ["amx_model"] * ("avx512_bf16" in names)


RUNNABLE = runnable()


@cache
def pool_of(name: str, threads: int) -> Any:
    """One pool of a variant, shared by all tests."""
    return load(name).new_pool(None, threads)


def aligned(nbytes: int, fill: int = 0) -> U8:
    """Bytes at a multiple of 64."""
    raw = np.full(nbytes + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


@dataclass(frozen=True)
class Packed:
    """count packed matrices [n, k] behind each other."""

    format: str
    n: int
    k: int
    count: int
    stride: int
    data: U8


def pack(
    library: Library,
    packed_format: str,
    rows: npt.NDArray[Any],
    *,
    source: str = "F32",
    k: int = 0,
    threads: int = 1,
) -> Packed:
    """Packs one matrix [n, columns] or several [count, n, columns]. rows: float32 values, or what
    `source` says: uint8 blocks of a GGUF type, halves. k: needed for blocks.
    """
    matrices = rows if rows.ndim == 3 else rows[None]
    matrices = np.ascontiguousarray(matrices)
    count, n = matrices.shape[:2]
    k = k or matrices.shape[2]
    number = library.format(packed_format)
    stride = library.lib.kt_packed_bytes(number, n, k)
    data = aligned(count * stride, fill=0xA5)  # kt_pack writes every byte
    for i, matrix in enumerate(matrices):
        target = library.ffi.from_buffer(data[i * stride :])
        rows = source_rows(matrix, source, n)
        library.pack(pool_of(library.name, threads), packed_format, (n, k), rows, target)
    return Packed(packed_format, n, k, count, stride, data)


def source_rows(rows: npt.NDArray[Any], encoding: str, n: int) -> Source:
    """n rows in `encoding`, a key of TYPE_NUMBERS."""
    grid = grid_codes(encoding) if encoding[:3] in ("IQ1", "IQ2", "IQ3") else None
    return Source(rows, TYPE_NUMBERS[encoding], rows.nbytes // n, grid=grid)


def unpack(library: Library, packed: Packed, index: int = 0, threads: int = 1) -> F32:
    """float32 [n, k] of one matrix."""
    out = np.empty((packed.n, packed.k), np.float32)
    status = library.lib.kt_unpack(
        pool_of(library.name, threads),
        library.format(packed.format),
        packed.n,
        packed.k,
        library.ffi.from_buffer(packed.data[index * packed.stride :]),
        library.ffi.cast("float *", out.ctypes.data),
    )
    library.check(status)
    return out


def unpacked(library: Library, packed: Packed, dtype: torch.dtype = torch.float64) -> list[Any]:
    """Every matrix as a torch tensor."""
    return [torch.from_numpy(unpack(library, packed, i)).to(dtype) for i in range(packed.count)]


@dataclass(frozen=True)
class Seq:
    """Tokens of one sequence in a batch. pages: of the whole sequence, from position 0."""

    tokens: Sequence[int]
    first: int = 0
    pages: Sequence[int] = ()


@dataclass
class Builder:
    """A list of operations over named slots. `build` makes the native program."""

    library: Library
    threads: int = 1
    layers: int = 0
    pages: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    kv_format: str = "bf16"
    slots: dict[str, tuple[int, int]] = field(default_factory=dict)
    ops: list[Any] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)

    def slot(self, name: str, width: int) -> int:
        number, known = self.slots.setdefault(name, (len(self.slots), width))
        assert known == width
        return number

    def op(self, kind: str, source: str, target: str, width: int, weights: Any = ()) -> Any:
        op = self.library.ffi.new("kt_op *")
        op.kind = getattr(self.library.lib, f"KT_OP_{kind}")
        op.out = self.slot(target, width)
        setattr(op, "in", self.slots[source][0])
        op.n_weights = len(weights)
        for native, packed in zip(op.w, weights, strict=False):
            native.format = self.library.format(packed.format)
            native.count, native.n, native.k = packed.count, packed.n, packed.k
            native.stride = packed.stride
            native.data = self.library.ffi.from_buffer(packed.data)
            self.keep.append(packed.data)
        self.ops.append(op)
        return op

    def embed(self, target: str, table: Packed | F32, scale: float = 1.0) -> None:
        packed = table if isinstance(table, Packed) else pack(self.library, "F32", table)
        self.slot(target, packed.k)
        self.op("EMBED", target, target, packed.k, [packed]).scale = scale

    def norm(self, source: str, target: str, gain: F32 | None = None, eps: float = 1e-6) -> None:
        width = self.slots[source][1]
        op = self.op("NORM", source, target, width)
        op.gain = self.floats(np.ones(width, np.float32) if gain is None else gain)
        op.eps = eps

    def linear(
        self,
        source: str,
        target: str,
        weights: Sequence[Packed],
        *,
        bias: Sequence[F32 | None] = (),
        add: bool = False,
    ) -> None:
        op = self.op("LINEAR", source, target, sum(w.n for w in weights), weights)
        op.flags = self.library.lib.KT_ADD if add else 0
        for i, values in enumerate(bias):
            if values is not None:
                op.w[i].bias = self.floats(values)

    def attention(
        self,
        source: str,
        target: str,
        n_heads: int,
        *,
        layer: int = 0,
        scale: float = 1.0,
        window: int = 0,
        rope: RopeSpec | None = None,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
        eps: float = 1e-6,
    ) -> None:
        a = self.op("ATTENTION", source, target, n_heads * self.head_dim).attention
        a.layer, a.n_heads, a.n_kv_heads = layer, n_heads, self.n_kv_heads
        a.head_dim, a.window, a.scale, a.qk_norm_eps = self.head_dim, window, scale, eps
        if q_norm is not None:
            a.q_norm = self.floats(q_norm)
        if k_norm is not None:
            a.k_norm = self.floats(k_norm)
        if rope is not None:
            a.rope.dims, a.rope.interleaved = rope.dims, rope.interleaved
            a.rope.attention_factor = rope.attention_factor
            a.rope.inv_freq = self.floats(np.array(rope.inv_freq, np.float32))

    def route(self, source: str, spec: RouterSpec, bias: F32 | None = None) -> None:
        self.router(self.op("ROUTE", source, source, spec.n_experts), spec, bias)

    def mlp(
        self, source: str, target: str, weights: Sequence[Packed], spec: RouterSpec | None = None
    ) -> None:
        op = self.op("MLP", source, target, weights[2].n, weights)
        if spec is not None:
            self.router(op, spec, None)

    def select(self, source: str, target: str) -> None:
        self.op("SELECT", source, target, self.slots[source][1])

    def router(self, op: Any, spec: RouterSpec, bias: F32 | None) -> None:
        r = op.router
        r.n_experts, r.top_k = spec.n_experts, spec.top_k
        r.score = getattr(self.library.lib, SCORES[spec.score])
        r.softmax_after, r.normalise, r.scale = spec.softmax_after, spec.normalise, spec.scale
        r.n_groups, r.top_groups = spec.n_groups, spec.top_groups
        r.group_top2 = spec.group_score == "top2"
        if bias is not None:
            r.selection_bias = self.floats(bias)

    def floats(self, values: F32) -> Any:
        array = np.ascontiguousarray(values, np.float32)
        self.keep.append(array)
        return self.library.ffi.cast("float *", array.ctypes.data)

    def build(self, max_tokens: int) -> Program:
        return Program(self, max_tokens)


class Program:
    """A native program. Logits are the last operation's slot. KV memory starts as NaN patterns:
    what a pass did not write must not be seen.
    """

    def __init__(self, builder: Builder, max_tokens: int) -> None:
        self.library, self.slots, self.keep = builder.library, builder.slots, builder.keep
        ffi, lib = self.library.ffi, self.library.lib
        kv_format = self.library.kv_format(builder.kv_format)
        self.kv = aligned(
            builder.layers
            * builder.pages
            * lib.kt_page_bytes(kv_format, builder.n_kv_heads, builder.head_dim)
            if builder.layers
            else 64,
            fill=0xFF,
        )
        desc = ffi.new("kt_program_desc *")
        ops = ffi.new("kt_op[]", [op[0] for op in builder.ops])
        widths = ffi.new("int32_t[]", [width for _, width in builder.slots.values()])
        desc.n_ops, desc.n_slots = len(builder.ops), len(widths)
        desc.max_tokens = desc.max_logits = max_tokens
        desc.n_kv_layers, desc.n_pages = builder.layers, builder.pages
        desc.n_kv_heads, desc.head_dim = builder.n_kv_heads, builder.head_dim
        desc.kv_format, desc.logits_slot = kv_format, builder.ops[-1].out
        desc.ops, desc.slot_widths, desc.kv = ops, widths, ffi.from_buffer(self.kv)
        self.width = widths[desc.logits_slot]
        self.pool = pool_of(self.library.name, builder.threads)
        program = lib.kt_program_new(self.pool, desc)
        if program == ffi.NULL:
            raise ValueError(self.library.error())
        self.native = ffi.gc(program, lib.kt_program_free)
        self.alive: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # arrays of batches

    def run(
        self,
        batch: int | Sequence[Seq],
        logit_rows: Sequence[int] | None = None,
        n_ops: int = 0,
    ) -> tuple[int, F32]:
        """Status and logits; the parameters are batch's."""
        native = self.batch(batch, logit_rows, n_ops)
        logits = np.full((native.n_logits, self.width), 7.0, np.float32)
        ffi = self.library.ffi
        status = self.library.lib.kt_forward(
            self.native, native, ffi.cast("float *", logits.ctypes.data)
        )
        return status, logits

    def batch(
        self,
        batch: int | Sequence[Seq],
        logit_rows: Sequence[int] | None = None,
        n_ops: int = 0,
    ) -> Any:
        """A kt_batch. batch: sequences, or a number n for one sequence of tokens 0 .. n - 1.
        logit_rows: all rows by default. n_ops: run no more operations than these; 0: all.
        """
        seqs = [Seq(range(batch))] if isinstance(batch, int) else batch
        starts = np.cumsum([0, *(len(s.tokens) for s in seqs)])
        rows = list(range(starts[-1])) if logit_rows is None else list(logit_rows)
        stride = max([1, *(len(s.pages) for s in seqs)])
        pages = [[*s.pages, *[0] * (stride - len(s.pages))] for s in seqs]
        arrays = {
            "tokens": [token for s in seqs for token in s.tokens],
            "seq_start": starts.tolist(),
            "first_position": [s.first for s in seqs],
            "page_table": [page for row in pages for page in row],
            "logit_rows": rows,
        }
        ffi = self.library.ffi
        native = {name: ffi.new("int32_t[]", values) for name, values in arrays.items()}
        sizes = {"n_seqs": len(seqs), "n_logits": len(rows), "page_stride": stride, "n_ops": n_ops}
        made = ffi.new("kt_batch *", {**native, **sizes})
        self.alive[made] = native
        return made

    def forward(self, batch: int | Sequence[Seq], logit_rows: Sequence[int] | None = None) -> F32:
        """Logits [rows, width]; raises if the pass fails."""
        status, logits = self.run(batch, logit_rows)
        self.library.check(status)
        return logits

    def values(self, slot: str, rows: int) -> F32:
        """The first rows of a slot after a pass [rows, width]."""
        number, width = self.slots[slot]
        stride = self.library.ffi.new("int64_t *")
        data = self.library.lib.kt_slot(self.native, number, stride)
        whole = self.library.ffi.buffer(data, rows * stride[0] * 4)
        return np.frombuffer(whole, np.float32).reshape(rows, stride[0])[:, :width].copy()


def relative_error(got: Any, want: Any) -> float:
    """Root mean square of the difference over that of the wanted values."""
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    return float((got - want).norm() / want.norm())


def assert_same_bits(got: F32, want: F32) -> None:
    """Bit for bit the same float32 values."""
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def normal(seed: int, *shape: int, scale: float = 1.0) -> F32:
    """Reproducible Gaussian float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def packed_random(library: Library, packed_format: str, n: int, k: int, seed: int = 0) -> Packed:
    """A random matrix in any format, from blocks of its GGUF type where it has one."""
    return packed_experts(library, packed_format, 1, n, k, seed)


def packed_experts(
    library: Library, packed_format: str, count: int, n: int, k: int, seed: int = 0
) -> Packed:
    """`count` random matrices in any format."""
    source = GGUF_FORMATS.get(packed_format)
    if source is None or k % 32:
        return pack(library, packed_format, normal(seed, count, n, k, scale=k**-0.5))
    rows = random_blocks(source, count * n, k, seed).reshape(count, n, -1)
    return pack(library, packed_format, rows, source=source, k=k)
