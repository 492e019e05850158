"""One MoE layer as a step program, fed by tables: a token id stands for a hidden state and for
router logits, so that a forward pass runs the layer and hardly anything else."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.bench.expert_weights import PARTS, ExpertWeights
from kt.errors import DoesNotFit
from kt.kernels.library import Library, Source

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

EPS: Final = 1e-6
BEFORE_MLP: Final = 4
"""Operations before the experts: embed, norm, embed of router logits, route."""
CHOSEN: Final = 10.0  # added to a logit so that its expert is among the top-k


class Tokens:
    """Two tables, one row per token id: hidden states and router logits, float32, random.

    The first `cycle` ids choose experts in turn: consecutive ones never share an expert until all
    had theirs, so that one token at a time always meets weights that were not used just before. The
    `spread` ids after them choose independently, as the tokens of a batch do.
    """

    def __init__(self, hidden: int, experts: int, top_k: int, *, batch: int, seed: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.top_k = top_k
        self.cycle, self.spread = 256, max(1024, 2 * batch)
        ids = self.cycle + self.spread
        self.hidden: F32 = rng.standard_normal((ids, hidden), np.float32)
        self.logits: F32 = rng.standard_normal((ids, experts), np.float32)
        turns = -(-self.cycle * top_k // experts)
        order = np.concatenate([rng.permutation(experts) for _ in range(turns + 1)])
        for row in range(self.cycle):
            self.logits[row, _distinct(order, row * top_k, top_k)] += CHOSEN

    def ids(self, count: int, call: int) -> I32:
        """The tokens of a call: `count` of them, others each time."""
        if count == 1:
            return np.array([call % self.cycle], np.int32)
        start = call * count % self.spread
        return (self.cycle + (start + np.arange(count)) % self.spread).astype(np.int32)

    def chosen(self, ids: I32) -> I32:
        """The experts of each token, [tokens, top_k], best first."""
        order = np.argsort(-self.logits[ids], axis=1, kind="stable")
        return order[:, : self.top_k].astype(np.int32)

    def active(self, ids: I32) -> int:
        """How many experts the tokens choose together."""
        return len(np.unique(self.chosen(ids)))


def _distinct(order: npt.NDArray[np.int64], start: int, count: int) -> npt.NDArray[np.int64]:
    """`count` different experts from `start` on: one may come twice where permutations meet."""
    found = list(dict.fromkeys(order[start:].tolist()))
    return np.array(found[:count])


class Layers:
    """A step program for each layer of `weights`, over shared tables. Raises DoesNotFit."""

    def __init__(
        self, library: Library, pool: Any, weights: ExpertWeights, tokens: Tokens, batch: int
    ) -> None:
        self._library, self._pool = library, pool
        self._weights, self._tokens = weights, tokens
        sizes = weights.sizes
        self._gain = np.ones(sizes.hidden, np.float32)
        self._tables = [self._table(tokens.hidden), self._table(tokens.logits)]
        self._programs = [self._program(layer, batch) for layer in range(weights.layers)]

    def __len__(self) -> int:
        return len(self._programs)

    def call(self, layer: int, ids: I32, *, experts: bool = True) -> Any:
        """A prepared forward pass of one layer: call it to run it. Without `experts` it stops
        before them."""
        ffi, lib, check = self._library.ffi, self._library.lib, self._library.check
        program = self._programs[layer % len(self)]
        count = len(ids)
        keep = (
            ids,
            ffi.new("int32_t[]", [0, count]),
            ffi.new("int32_t[]", [0]),
        )
        batch = ffi.new("kt_batch *")
        batch.n_seqs, batch.n_ops = 1, 0 if experts else BEFORE_MLP
        batch.tokens = ffi.cast("int32_t *", ids.ctypes.data)
        batch.seq_start, batch.first_position = keep[1], keep[2]
        forward, null = lib.kt_forward, ffi.NULL

        def run(_keep: Any = keep) -> None:
            check(forward(program, batch, null))

        return run

    def hidden(self, layer: int, rows: int) -> F32:
        """The hidden states after the last call of a layer, [rows, hidden]."""
        ffi = self._library.ffi
        stride = ffi.new("int64_t *")
        data = self._library.lib.kt_slot(self._programs[layer], 0, stride)
        values = np.frombuffer(ffi.buffer(data, rows * stride[0] * 4), np.float32)
        found: F32 = values.reshape(rows, stride[0])[:, : self._weights.sizes.hidden].copy()
        return found

    def _table(self, values: F32) -> tuple[Any, int, int]:
        """A float32 matrix, packed: (its memory, n, k)."""
        library = self._library
        n, k = values.shape
        number = library.format("F32")
        nbytes = library.lib.kt_packed_bytes(number, n, k)
        data = library.lib.kt_alloc(nbytes, -1)
        if data == library.ffi.NULL:
            raise DoesNotFit(f"the system refuses {nbytes} bytes for inputs")
        memory = library.ffi.gc(data, lambda pointer: library.lib.kt_free(pointer, nbytes))
        source = Source(values, 0, values.strides[0])
        library.pack(self._pool, "F32", (n, k), source, memory)
        return memory, n, k

    def _program(self, layer: int, batch: int) -> Any:
        ffi, lib, sizes = self._library.ffi, self._library.lib, self._weights.sizes
        ops = ffi.new("kt_op[]", BEFORE_MLP + 1)
        self._embed(ops[0], 0, self._tables[0])
        ops[1].kind, ops[1].out, ops[1].eps = lib.KT_OP_NORM, 1, EPS
        ops[1].gain = ffi.cast("float *", self._gain.ctypes.data)
        self._embed(ops[2], 2, self._tables[1])
        for op, kind in ((ops[3], lib.KT_OP_ROUTE), (ops[4], lib.KT_OP_MLP)):
            op.kind = kind
            op.router.n_experts, op.router.top_k = sizes.experts, sizes.top_k
            op.router.normalise, op.router.scale = 1, 1.0
        setattr(ops[3], "in", 2)
        ops[3].out = 2
        setattr(ops[4], "in", 1)
        ops[4].out, ops[4].n_weights = 0, len(PARTS)
        for weight, part in zip(ops[4].w, PARTS, strict=True):
            weight.format = self._library.format(self._weights.format.packed)
            weight.n, weight.k = sizes.shape(part)
            weight.count, weight.stride = sizes.experts, self._weights.strides[part]
            weight.data = self._weights.at(layer, part)
        return self._new(ops, [sizes.hidden, sizes.hidden, sizes.experts], batch)

    def _embed(self, op: Any, slot: int, table: tuple[Any, int, int]) -> None:
        memory, n, k = table
        op.kind, op.out, op.scale, op.n_weights = self._library.lib.KT_OP_EMBED, slot, 1.0, 1
        weight = op.w[0]
        weight.format, weight.count = self._library.format("F32"), 1
        weight.n, weight.k, weight.data = n, k, memory

    def _new(self, ops: Any, widths: list[int], batch: int) -> Any:
        ffi, lib = self._library.ffi, self._library.lib
        slots = ffi.new("int32_t[]", widths)
        desc = ffi.new("kt_program_desc *")
        desc.n_ops, desc.n_slots = len(ops), len(widths)
        desc.max_tokens = desc.max_logits = batch
        desc.ops, desc.slot_widths = ops, slots
        program = lib.kt_program_new(self._pool, desc)
        if program == ffi.NULL:
            raise DoesNotFit(f"the step program cannot be built: {self._library.error()}")
        return ffi.gc(program, lib.kt_program_free)
