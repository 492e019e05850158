"""The CPU executor: packs a checkpoint into one block of memory and runs its program natively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kt.engine.batch import F32, I32, Batch, Sampled, SampleParams
from kt.engine.diagnosis import diagnose
from kt.engine.lowering import PackedMatrix, StepProgram, lower
from kt.engine.packed_weights import mapped_at, read_into
from kt.engine.sources import source_of
from kt.errors import DoesNotFit, NotFinite
from kt.kernels.library import Library
from kt.models.spec import ModelSpec
from kt.placement.budget import KvFormat
from kt.units import format_bytes
from kt.weights.checkpoint import Checkpoint
from kt.weights.dequantize import dequantize

Progress = Callable[[int, int], None]

_BEST = 20  # room for the best log probabilities of a row in kt_sample


class CpuExecutor:
    """Executor on `cpus`, one pinned worker each. max_logits: rows of a batch that want logits (0:
    all of them). progress(done, total) counts packed bytes. read: a converted model's weights are
    read into memory, not used where they are mapped. alter: changes the step program before it is
    built.

    Raises DoesNotFit when memory cannot be had. See kt.engine.batch.Executor for the methods.
    """

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: Checkpoint,
        library: Library,
        *,
        cpus: Sequence[int],
        n_pages: int,
        kv_format: KvFormat = "bf16",
        max_batch_tokens: int,
        max_logits: int = 0,
        progress: Progress | None = None,
        read: bool = False,
        alter: Callable[[StepProgram], None] | None = None,
    ) -> None:
        self.vocab = spec.vocab
        self.context = spec.context
        self.max_batch_tokens = max_batch_tokens
        self.max_logits = max_logits or max_batch_tokens
        self.page_tokens = int(library.lib.kt_page_tokens())
        self.n_pages = n_pages
        self._kv_format = library.kv_format(kv_format)
        self._library, self._ffi, self._lib = library, library.ffi, library.lib
        self._pool = library.new_pool(cpus)
        self._checkpoint = checkpoint
        self._diagnosis = ""  # of the first bad batch; the others' reason is hardly another
        self._step = lower(spec, checkpoint, library)
        if alter:
            alter(self._step)
        self._norm_eps = np.float32(spec.norm_eps)
        self._final_norm = dequantize(checkpoint.tensor("final_norm"))
        self._read = read
        packed = sum(m.nbytes for m in self._step.matrices if not self._in_place(m))
        self._weights = self._allocate(max(packed, 1), "weights")
        self._pack(packed, len(cpus), progress)
        self._program, self._kv = self._build(spec)
        self._logits = np.empty((0, spec.vocab), np.float32)

    def forward(self, batch: Batch, *, n_ops: int = 0) -> F32:
        """See Executor. n_ops > 0 stops after that many operations (for `slot`); no logits then."""
        count = len(batch.logit_rows)
        if count > len(self._logits):
            self._logits = _on_cache_lines(count, self.vocab)
        ffi = self._ffi
        arrays = (
            batch.tokens,
            batch.seq_start,
            batch.first_position,
            batch.page_table,
            batch.logit_rows,
        )
        tokens, start, first, pages, rows = (_int_pointer(ffi, array) for array in arrays)
        native = ffi.new(
            "kt_batch *",
            {
                "n_seqs": len(batch.first_position),
                "n_logits": count,
                "page_stride": batch.page_table.shape[1],
                "n_ops": n_ops,
                "tokens": tokens,
                "seq_start": start,
                "first_position": first,
                "page_table": pages,
                "logit_rows": rows,
            },
        )
        logits = ffi.cast("float *", self._logits.ctypes.data) if count else ffi.NULL
        try:
            self._library.check(self._lib.kt_forward(self._program, native, logits))
        except NotFinite as error:
            self._diagnosis = self._diagnosis or self.diagnose(batch)
            raise NotFinite(f"{error.message}; {self._diagnosis}") from None
        return self._logits[:count]

    def sample(self, logits: F32, params: list[SampleParams]) -> list[Sampled]:
        """See Executor."""
        ffi, count = self._ffi, len(params)
        keep: list[Any] = []
        native = ffi.new("kt_sampling[]", count)
        for row, p in zip(native, params, strict=True):
            _fill_sampling(ffi, row, p, keep)
        ids = np.empty(count, np.int32)
        chosen = np.empty(count, np.float32)
        wanted = any(p.n_logprobs > 0 for p in params)
        best_ids = np.empty((count if wanted else 0, _BEST), np.int32)
        best = np.empty((count if wanted else 0, _BEST), np.float32)
        status = self._lib.kt_sample(
            self._pool,
            ffi.cast("float *", logits.ctypes.data),
            count,
            self.vocab,
            native,
            _int_pointer(ffi, ids),
            ffi.cast("float *", chosen.ctypes.data)
            if any(p.n_logprobs >= 0 for p in params)
            else ffi.NULL,
            _int_pointer(ffi, best_ids) if wanted else ffi.NULL,
            ffi.cast("float *", best.ctypes.data) if wanted else ffi.NULL,
        )
        self._library.check(status)
        return [_sampled(i, p, ids, chosen, best_ids, best) for i, p in enumerate(params)]

    def embed(self, batch: Batch) -> F32:
        """See Executor. The program runs to the choice of rows; the last norm is done here."""
        names = [out for _, out in self.operations]
        self.forward(batch, n_ops=names.index("selected"))
        hidden = self.slot("hidden", len(batch.tokens))
        scale = np.sqrt(np.mean(hidden * hidden, axis=1, keepdims=True) + self._norm_eps)
        normed: F32 = (hidden / scale * self._final_norm).astype(np.float32)
        return normed

    def diagnose(self, batch: Batch) -> str:
        """Where the numbers of a batch whose logits are not finite first went wrong."""
        return diagnose(self, self._step, self._checkpoint, self._lib, batch)

    def slot(self, name: str, rows: int) -> F32:
        """A copy of value slot `name` after a forward pass: float32 [rows, width]."""
        number, width = self._step.slots[name]
        stride = self._ffi.new("int64_t *")
        data = self._lib.kt_slot(self._program, number, stride)
        whole = self._ffi.buffer(data, rows * stride[0] * 4)
        values: F32 = np.frombuffer(whole, np.float32).reshape(rows, stride[0])
        return np.array(values[:, :width])

    @property
    def variant(self) -> str:
        """The name that the loaded library gives itself."""
        return bytes(self._ffi.string(self._lib.kt_variant_name())).decode()

    @property
    def operations(self) -> list[tuple[int, str]]:
        """(kind, output slot) of every operation in order, for layer-by-layer checks."""
        names = {number: name for name, (number, _) in self._step.slots.items()}
        return [(op.kind, names[op.out]) for op in self._step.operations]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held: packed weights, KV pages, working memory."""
        return {
            "weights": sum(m.nbytes for m in self._step.matrices),
            "kv": self._kv_bytes,
            "working": int(self._lib.kt_program_bytes(self._program)),
        }

    def close(self) -> None:
        """See Executor."""
        for owned in (self._program, self._kv, self._weights, self._pool):
            self._ffi.release(owned)

    def _allocate(self, nbytes: int, what: str) -> Any:
        data = self._lib.kt_alloc(nbytes, -1)
        if data == self._ffi.NULL:
            raise DoesNotFit(
                f"the system refuses {nbytes} bytes ({format_bytes(nbytes)}) for {what}",
                hint="Close other programs, or choose a smaller model, format or context.",
            )
        return self._ffi.gc(data, lambda pointer: self._lib.kt_free(pointer, nbytes))

    def _pack(self, total: int, threads: int, progress: Progress | None) -> None:
        tell = progress or (lambda done, total: None)
        ffi, at, done = self._ffi, self._ffi.cast("uint8_t *", self._weights), 0
        for matrix in self._step.matrices:
            in_place = self._in_place(matrix)
            place = ffi.cast("uint8_t *", mapped_at(matrix)) if in_place else at
            for weight in matrix.weights:
                weight.data = place
            if in_place:
                continue
            if matrix.mapped:
                target = np.frombuffer(ffi.buffer(at, matrix.nbytes), np.uint8)
                read_into(matrix, target, threads)
                tell(done + matrix.nbytes, total)
            else:
                for index in range(len(matrix.tensors)):
                    self._pack_one(matrix, index, at + index * matrix.stride)
                    tell(done + (index + 1) * matrix.stride, total)
            done += matrix.nbytes
            at += matrix.nbytes

    def _in_place(self, matrix: PackedMatrix) -> bool:
        """Whether a matrix is used where its file is mapped."""
        return matrix.mapped and not self._read

    def _pack_one(self, matrix: PackedMatrix, index: int, target: Any) -> None:
        tensor = matrix.tensors[index]
        tensor.check_length()
        rows = matrix.rows[index] if matrix.rows else None
        source = source_of(tensor, matrix.format, rows)
        self._library.pack(self._pool, matrix.format, (matrix.n, matrix.k), source, target)
        tensor.check_length()

    def _build(self, spec: ModelSpec) -> tuple[Any, Any]:
        ffi, step = self._ffi, self._step
        attention = spec.layers[0].attention
        sizes = attention.n_kv_heads, attention.head_dim
        page_bytes = self._lib.kt_page_bytes(self._kv_format, *sizes)
        self._kv_bytes = len(spec.layers) * self.n_pages * page_bytes
        kv = self._allocate(self._kv_bytes, "the KV cache")
        operations = ffi.new("kt_op[]", len(step.operations))
        for i, op in enumerate(step.operations):
            operations[i] = op[0]
        desc = ffi.new("kt_program_desc *")
        desc.n_ops, desc.n_slots = len(step.operations), len(step.slots)
        desc.max_tokens, desc.max_logits = self.max_batch_tokens, self.max_logits
        desc.n_kv_layers, desc.n_pages = len(spec.layers), self.n_pages
        desc.n_kv_heads, desc.head_dim = sizes
        desc.kv_format = self._kv_format
        desc.logits_slot = step.slots["logits"][0]
        widths = ffi.new("int32_t[]", [width for _, width in step.slots.values()])
        desc.ops, desc.slot_widths, desc.kv = operations, widths, kv
        program = self._lib.kt_program_new(self._pool, desc)
        if program == ffi.NULL:
            raise DoesNotFit(f"the step program cannot be built: {self._library.error()}")
        return ffi.gc(program, self._lib.kt_program_free), kv


def _on_cache_lines(rows: int, width: int) -> F32:
    """Memory for float32 [rows, width] that begins with a cache line: vectors of it then do too."""
    raw = np.empty(rows * width + 15, np.float32)
    first = -raw.ctypes.data % 64 // raw.itemsize
    return raw[first : first + rows * width].reshape(rows, width)


def _int_pointer(ffi: Any, array: I32) -> Any:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise ValueError("executor arrays are contiguous int32")
    return ffi.cast("int32_t *", array.ctypes.data)


def _fill_sampling(ffi: Any, row: Any, p: SampleParams, keep: list[Any]) -> None:
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "n_logprobs",
        "seed",
        "position",
        "n_prompt",
        "given",
    ):
        setattr(row, name, getattr(p, name))
    row.history, row.n_history = _int_pointer(ffi, p.history), len(p.history)
    if p.bias:
        ids = ffi.new("int32_t[]", [token for token, _ in p.bias])
        values = ffi.new("float[]", [value for _, value in p.bias])
        keep += [ids, values]
        row.bias_ids, row.bias_values, row.n_bias = ids, values, len(p.bias)
    if p.mask is not None:
        row.mask = ffi.cast("uint32_t *", p.mask.ctypes.data)


def _sampled(i: int, p: SampleParams, ids: I32, chosen: F32, best_ids: I32, best: F32) -> Sampled:
    if p.n_logprobs < 0:
        return Sampled(int(ids[i]))
    count = min(p.n_logprobs, _BEST)
    pairs = (
        zip(best_ids[i, :count].tolist(), best[i, :count].tolist(), strict=True) if count else ()
    )
    return Sampled(int(ids[i]), float(chosen[i]), tuple(pairs))
