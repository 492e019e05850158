"""Attention layers as a step program, fed by a table: a token id stands for a row of queries, keys
and values, so that a forward pass runs attention and hardly anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kt.errors import DoesNotFit, UsageError
from kt.kernels.library import Library, Source
from kt.placement.budget import PAGE_TOKENS, KvFormat, pages_for
from kt.units import format_bytes

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

PERIOD: Final = 512
"""Token i has row i % PERIOD of the table, so the KV memory repeats after so many positions."""

LAYERS: Final = 4
"""Of a pass: what happens once a pass, the workers' start above all, counts little in a model of
many layers, and should count little here."""


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads, dims of a head, and what keys and values are stored in. Raises
    UsageError for what is no attention."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_format: KvFormat = "bf16"

    def __post_init__(self) -> None:
        for name in ("n_heads", "n_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                option = name.removeprefix("n_").replace("_", "-")
                raise UsageError(f"--{option} {getattr(self, name)}: a layer has at least 1")
        if self.n_heads % self.n_kv_heads:
            raise UsageError(
                f"--heads {self.n_heads}: not a multiple of the {self.n_kv_heads} KV heads"
            )

    @property
    def width(self) -> int:
        """Of a token's queries, keys and values together."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    def page_bytes(self, library: Library) -> int:
        """Of one KV page of one layer."""
        number = library.kv_format(self.kv_format)
        return int(library.lib.kt_page_bytes(number, self.n_kv_heads, self.head_dim))


class AttentionLayers:
    """LAYERS attention operations on the same inputs, each over `pages` KV pages of its own; a pass
    computes up to `batch` tokens. Raises DoesNotFit."""

    def __init__(self, library: Library, pool: Any, heads: Heads, pages: int, batch: int) -> None:
        self._library, self._pool, self.heads, self.pages = library, pool, heads, pages
        self.kv_bytes = LAYERS * pages * heads.page_bytes(library)
        rng = np.random.default_rng(4)
        self.table: F32 = rng.standard_normal((PERIOD, heads.width), np.float32)
        self._embedding = self._allocate(
            library.lib.kt_packed_bytes(library.format("F32"), PERIOD, heads.width), "inputs"
        )
        source = Source(self.table, 0, self.table.strides[0])
        library.pack(pool, "F32", self.table.shape, source, self._embedding)
        self._kv = self._allocate(self.kv_bytes, "KV pages")
        self._program = self._new(max(batch, PERIOD))
        self._fill()

    def call(
        self, first: int, tokens: int, *, page: int = 0, attend: bool = True
    ) -> Callable[[], None]:
        """A prepared pass of `tokens` tokens from position `first` of a sequence whose pages are
        page, page + 1, ...: call it to run it. Without `attend` it stops before attention."""
        ffi, lib, check = self._library.ffi, self._library.lib, self._library.check
        ids = ((first + np.arange(tokens)) % PERIOD).astype(np.int32)
        pages = page + np.arange(pages_for(first + tokens), dtype=np.int32)
        batch = ffi.new("kt_batch *")
        keep = (ids, pages, ffi.new("int32_t[]", [0, tokens]), ffi.new("int32_t[]", [first]))
        batch.n_seqs, batch.n_ops, batch.page_stride = 1, 0 if attend else 1, len(pages)
        batch.tokens = ffi.cast("int32_t *", ids.ctypes.data)
        batch.page_table = ffi.cast("int32_t *", pages.ctypes.data)
        batch.seq_start, batch.first_position = keep[2], keep[3]
        program, forward, null = self._program, lib.kt_forward, ffi.NULL

        def run(_keep: Any = keep) -> None:
            check(forward(program, batch, null))

        return run

    def attended(self, rows: int) -> F32:
        """What the last layer of the last call gave, [rows, heads * head_dim]."""
        ffi, width = self._library.ffi, self.heads.n_heads * self.heads.head_dim
        stride = ffi.new("int64_t *")
        data = self._library.lib.kt_slot(self._program, 1, stride)
        values = np.frombuffer(ffi.buffer(data, rows * stride[0] * 4), np.float32)
        found: F32 = values.reshape(rows, stride[0])[:, :width].copy()
        return found

    def _fill(self) -> None:
        """Computes the pages of one period, and copies them all over the KV memory."""
        count = min(PERIOD // PAGE_TOKENS, self.pages)
        self.call(0, count * PAGE_TOKENS)()
        memory = np.frombuffer(self._library.ffi.buffer(self._kv, self.kv_bytes), np.uint8)
        for head in memory.reshape(LAYERS * self.heads.n_kv_heads, self.pages, -1):
            for page in range(count, self.pages, count):
                some = head[page : page + count]
                some[:] = head[: len(some)]

    def _allocate(self, nbytes: int, what: str) -> Any:
        ffi, lib = self._library.ffi, self._library.lib
        data = lib.kt_alloc(nbytes, -1)
        if data == ffi.NULL:
            raise DoesNotFit(f"the system refuses {format_bytes(nbytes)} for {what}")
        return ffi.gc(data, lambda pointer: lib.kt_free(pointer, nbytes))

    def _new(self, batch: int) -> Any:
        ffi, lib, heads = self._library.ffi, self._library.lib, self.heads
        ops = ffi.new("kt_op[]", 1 + LAYERS)
        ops[0].kind, ops[0].out, ops[0].scale, ops[0].n_weights = lib.KT_OP_EMBED, 0, 1.0, 1
        weight = ops[0].w[0]
        weight.format, weight.count = self._library.format("F32"), 1
        weight.n, weight.k, weight.data = PERIOD, heads.width, self._embedding
        for layer in range(LAYERS):
            op = ops[1 + layer]
            op.kind, op.out = lib.KT_OP_ATTENTION, 1
            op.attention.layer, op.attention.scale = layer, heads.head_dim**-0.5
            op.attention.n_heads, op.attention.n_kv_heads = heads.n_heads, heads.n_kv_heads
            op.attention.head_dim = heads.head_dim
        slots = ffi.new("int32_t[]", [heads.width, heads.n_heads * heads.head_dim])
        desc = ffi.new("kt_program_desc *")
        desc.n_ops, desc.n_slots, desc.logits_slot = 1 + LAYERS, 2, 1
        desc.max_tokens = desc.max_logits = batch
        desc.n_kv_layers, desc.n_pages, desc.kv = LAYERS, self.pages, self._kv
        desc.n_kv_heads, desc.head_dim = heads.n_kv_heads, heads.head_dim
        desc.kv_format = self._library.kv_format(heads.kv_format)
        desc.ops, desc.slot_widths = ops, slots
        program = lib.kt_program_new(self._pool, desc)
        if program == ffi.NULL:
            raise DoesNotFit(f"the step program cannot be built: {self._library.error()}")
        return ffi.gc(program, lib.kt_program_free)
