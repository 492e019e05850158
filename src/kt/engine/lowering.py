"""A ModelSpec and its checkpoint become a step program: operations over value slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kt.kernels.library import Library
from kt.models.spec import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec, RouterSpec
from kt.weights.act_order import columns_of, is_shuffled
from kt.weights.checkpoint import Checkpoint
from kt.weights.dequantize import dequantize
from kt.weights.encodings import BY_NAME
from kt.weights.packed_folder import is_packed
from kt.weights.quant import I32
from kt.weights.tensor import Tensor

_SCORES = {"softmax": "KT_SOFTMAX", "sigmoid": "KT_SIGMOID", "sqrt_softplus": "KT_SQRT_SOFTPLUS"}


@dataclass(eq=False)
class PackedMatrix:
    """One matrix [n, k], or one per expert, waiting for its place in memory.

    format: kt.h's name without KT_. stride: bytes of one packed matrix. weights: the kt_weight
    structs that shall point to it. rows: for every matrix the order of its rows, if any.
    """

    tensors: Sequence[Tensor]
    format: str
    n: int
    k: int
    stride: int
    weights: list[Any] = field(default_factory=list)
    rows: Sequence[I32 | None] = ()

    @property
    def nbytes(self) -> int:
        return self.stride * len(self.tensors)

    @property
    def mapped(self) -> bool:
        """Whether the tensors are packed already, one behind the other."""
        return is_packed(self.tensors[0])


@dataclass(eq=False)
class StepProgram:
    """operations: kt_op structs in order. slots: name -> (number, width).

    keep: arrays that the operations point to. places: for each operation the beginning of the roles
    of its tensors ("layers.3."), "" outside the layers.
    """

    operations: list[Any]
    slots: dict[str, tuple[int, int]]
    matrices: list[PackedMatrix]
    keep: list[npt.NDArray[Any]]
    places: list[str] = field(default_factory=list)


def lower(spec: ModelSpec, checkpoint: Checkpoint, library: Library) -> StepProgram:
    """The step program of a model. Nothing is packed yet."""
    return _Lowering(spec, checkpoint, library).run()


class _Lowering:
    def __init__(self, spec: ModelSpec, checkpoint: Checkpoint, library: Library) -> None:
        self.spec = spec
        self.checkpoint = checkpoint
        self.gathers = checkpoint.gathers
        self.ffi, self.lib = library.ffi, library.lib
        self.library = library
        self.program = StepProgram([], {}, [], [])
        self.frequencies: dict[tuple[float, ...], Any] = {}
        self.place = ""

    def run(self) -> StepProgram:
        spec = self.spec
        for name in ("hidden", "normed", "selected", "selected_normed"):
            self.slot(name, spec.hidden)
        embed = self.matrix([self.checkpoint.tensor("embed")])
        op = self.op("EMBED", "hidden", "hidden", [embed])
        op.scale = spec.embedding_scale
        for index, layer in enumerate(spec.layers):
            self.place = f"layers.{index}."
            self.layer(index, layer)
        self.place = ""
        self.op("SELECT", "hidden", "selected")
        self.norm("selected", "selected_normed", "final_norm")
        head = embed if spec.tied_embeddings else self.matrix([self.checkpoint.tensor("lm_head")])
        self.slot("logits", spec.vocab)
        self.op("LINEAR", "selected_normed", "logits", [head])
        return self.program

    def layer(self, index: int, layer: LayerSpec) -> None:
        role = f"layers.{index}."
        attention = layer.attention
        heads = (attention.n_heads + 2 * attention.n_kv_heads) * attention.head_dim
        self.slot("qkv", heads)
        self.slot("attended", attention.n_heads * attention.head_dim)
        self.norm("hidden", "normed", role + "attn_norm")
        self.linear("normed", "qkv", [role + "q", role + "k", role + "v"], bias=attention.qkv_bias)
        self.attention(index, attention)
        self.linear("attended", "hidden", [role + "o"], bias=attention.output_bias, add=True)
        self.norm("hidden", "normed", role + "mlp_norm")
        if isinstance(layer.mlp, ExpertSpec):
            self.experts(index, layer.mlp)
        else:
            parts = [[self.checkpoint.tensor(role + part)] for part in ("gate", "up", "down")]
            self.op("MLP", "normed", "hidden", [self.matrix(part) for part in parts])

    def norm(self, source: str, target: str, role: str) -> None:
        op = self.op("NORM", source, target)
        op.gain = self.floats(role)
        op.eps = self.spec.norm_eps

    def linear(
        self, source: str, target: str, roles: list[str], *, bias: bool, add: bool = False
    ) -> None:
        matrices = [self.matrix([self.checkpoint.tensor(role)]) for role in roles]
        op = self.op("LINEAR", source, target, matrices)
        op.flags = self.lib.KT_ADD if add else 0
        for i, role in enumerate(roles):
            if bias:
                op.w[i].bias = self.floats(f"{role}.bias")

    def attention(self, index: int, spec: AttentionSpec) -> None:
        op = self.op("ATTENTION", "qkv", "attended")
        a = op.attention
        a.layer, a.n_heads, a.n_kv_heads = index, spec.n_heads, spec.n_kv_heads
        a.head_dim, a.window, a.scale = spec.head_dim, spec.window, spec.scale
        if spec.qk_norm:
            a.q_norm = self.floats(f"layers.{index}.q_norm")
            a.k_norm = self.floats(f"layers.{index}.k_norm")
            a.qk_norm_eps = self.spec.norm_eps
        rope = spec.rope
        a.rope.dims, a.rope.interleaved = rope.dims, rope.interleaved
        a.rope.attention_factor = rope.attention_factor
        if rope.dims:
            # Layers with the same frequencies share one array, and natively one table of angles.
            if rope.inv_freq not in self.frequencies:
                self.frequencies[rope.inv_freq] = self.array(rope.inv_freq)
            a.rope.inv_freq = self.frequencies[rope.inv_freq]

    def experts(self, index: int, spec: ExpertSpec) -> None:
        router = self.checkpoint.tensor(f"layers.{index}.router")
        self.slot("router", spec.router.n_experts)
        # The choice of experts is decided in float32: rounding here would change which ones run.
        exact = router if is_packed(router) else _as_f32(router)
        self.op("LINEAR", "normed", "router", [self.matrix([exact], "F32")])
        self.router(self.op("ROUTE", "router", "router"), spec.router)
        parts = [self.checkpoint.experts(index, part) for part in ("gate", "up", "down")]
        op = self.op("MLP", "normed", "hidden", [self.matrix(part) for part in parts])
        self.router(op, spec.router)

    def router(self, op: Any, spec: RouterSpec) -> None:
        r = op.router
        r.n_experts, r.top_k, r.score = (
            spec.n_experts,
            spec.top_k,
            getattr(self.lib, _SCORES[spec.score]),
        )
        r.softmax_after, r.normalise, r.scale = spec.softmax_after, spec.normalise, spec.scale
        r.n_groups, r.top_groups = spec.n_groups, spec.top_groups
        r.group_top2 = spec.group_score == "top2"

    def slot(self, name: str, width: int) -> None:
        _, known = self.program.slots.setdefault(name, (len(self.program.slots), width))
        if known != width:
            # Layers of different widths share no slot.
            raise AssertionError(f"slot {name} is {known} wide, not {width}")

    def op(self, kind: str, source: str, target: str, matrices: Sequence[PackedMatrix] = ()) -> Any:
        op = self.ffi.new("kt_op *")
        op.kind = getattr(self.lib, f"KT_OP_{kind}")
        setattr(op, "in", self.program.slots[source][0])
        op.out = self.program.slots[target][0]
        op.n_weights = len(matrices)
        for i, matrix in enumerate(matrices):
            weight = op.w[i]
            weight.format = self.library.format(matrix.format)
            weight.count, weight.n, weight.k = len(matrix.tensors), matrix.n, matrix.k
            weight.stride = matrix.stride
            factors = _factors(matrix)
            if factors is not None:
                weight.scale = self.array(factors)
            matrix.weights.append(weight)
        if self.gathers and kind in ("LINEAR", "MLP"):
            self.order(op, matrices)
        self.program.operations.append(op)
        self.program.places.append(self.place)
        return op

    def order(self, op: Any, matrices: Sequence[PackedMatrix]) -> None:
        """Matrices in act-order: the order in which their input is gathered (all that read it have
        one); in front of a down, that of the rows of gate and up.
        """
        readers = matrices[:2] if op.kind == self.lib.KT_OP_MLP else matrices
        tables = [_columns(matrix) for matrix in readers]
        if any(not np.array_equal(tables[0], table) for table in tables[1:]):
            raise AssertionError("matrices of one input are in several orders")
        if any(is_shuffled(tensor) for tensor in matrices[0].tensors):
            self.program.keep.append(tables[0])
            op.order = self.ffi.cast("int32_t *", tables[0].ctypes.data)
        if op.kind == self.lib.KT_OP_MLP:
            rows = [columns_of(tensor) for tensor in matrices[2].tensors]
            if any(order is not None for order in rows):
                matrices[0].rows = matrices[1].rows = rows

    def matrix(self, tensors: Sequence[Tensor], packed_format: str = "") -> PackedMatrix:
        packed_format = packed_format or tensors[0].packed_format
        n, k = tensors[0].shape
        stride = self.lib.kt_packed_bytes(self.library.format(packed_format), n, k)
        matrix = PackedMatrix(tensors, packed_format, n, k, stride)
        self.program.matrices.append(matrix)
        return matrix

    def floats(self, role: str) -> Any:
        return self.array(dequantize(self.checkpoint.tensor(role)))

    def array(self, values: Any) -> Any:
        array = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        self.program.keep.append(array)
        return self.ffi.cast("float *", array.ctypes.data)


def _factors(matrix: PackedMatrix) -> list[float] | None:
    """What multiplies each matrix beside its packed scales; None if nothing does."""
    first = matrix.tensors[0].quant
    if first is None or first.factor is None or matrix.format != first.packed_format:
        return None  # or packed from float32 values, which have it
    return [tensor.quant.factor_value() for tensor in matrix.tensors if tensor.quant]


def _columns(matrix: PackedMatrix) -> I32:
    """The column of the input that every column reads: int32 [matrices, k]."""
    straight = np.arange(matrix.k, dtype=np.int32)
    orders = map(columns_of, matrix.tensors)
    return np.stack([straight if order is None else order for order in orders])


def _as_f32(tensor: Tensor) -> Tensor:
    values = dequantize(tensor)
    return Tensor(tensor.name, tensor.shape, BY_NAME["F32"], values.reshape(-1).view(np.uint8))
