"""The worker pool: many small jobs, parking, and leaving nothing behind."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest

from kt.errors import MachineError
from kt.kernels.library import Library, load
from tests.native.harness import (
    RUNNABLE,
    Builder,
    Program,
    assert_same_bits,
    normal,
    packed_random,
    pool_of,
)


@pytest.fixture(scope="module")
def best() -> Library:
    return load(RUNNABLE[0])


def tiny(library: Library, threads: int) -> Program:
    builder = Builder(library, threads=threads)
    builder.embed("x", normal(1, 4, 64))
    builder.norm("x", "normed")
    builder.linear("normed", "y", [packed_random(library, "I8_G32", 64, 64)])
    return builder.build(4)


def thread_ids() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def cpu_seconds(threads: set[str]) -> float:
    """Processor time that these threads of this process took, in clock ticks of 10 ms."""
    total = 0
    for thread in threads:
        stat = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(stat[11]) + int(stat[12])
    return total / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_many_small_jobs_complete(best, threads):
    """Three barriers each. More threads than cores must not stall: waiting threads give way."""
    program = tiny(best, threads)
    want = program.forward(4)
    rounds = 10_000 if threads <= 2 else 2_000
    start = time.monotonic()
    ffi, lib = best.ffi, best.lib
    arrays = [ffi.new("int32_t[]", v) for v in ([0, 1, 2, 3], [0, 4], [0], [0], [0, 1, 2, 3])]
    names = ("tokens", "seq_start", "first_position", "page_table", "logit_rows")
    batch = ffi.new("kt_batch *", dict(zip(names, arrays, strict=True)))
    batch.n_seqs, batch.n_logits, batch.page_stride = 1, 4, 1
    got = np.zeros_like(want)
    out = ffi.cast("float *", got.ctypes.data)
    for _ in range(rounds):
        assert lib.kt_forward(program.native, batch, out) == 0
    assert_same_bits(got, want)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_idle_pool_uses_no_cpu(best, threads):
    before = thread_ids()
    pool = best.new_pool(None, threads)
    workers = thread_ids() - before
    assert len(workers) == threads == best.lib.kt_pool_threads(pool)
    packed = np.zeros(1 << 20, np.uint8)
    for _ in range(20):  # awake at first
        assert best.lib.kt_read_rate(pool, best.ffi.from_buffer(packed), len(packed), 0.001) > 0
    time.sleep(0.05)
    working, process = cpu_seconds(workers), time.process_time()
    assert working > 0
    time.sleep(0.5)
    assert cpu_seconds(workers) - working < 0.015  # one tick
    assert time.process_time() - process < 0.05
    best.ffi.release(pool)


def test_pools_leave_no_threads(best):
    pool_of(best.name, 1)
    before = thread_ids()
    for i in range(50):
        pool = best.new_pool(None, i % 4 + 1)
        assert len(thread_ids() - before) == i % 4 + 1
        best.ffi.release(pool)
        assert thread_ids() == before


def test_a_busy_pool_can_be_freed_at_once(best):
    """The workers still spin for their next job then."""
    for _ in range(20):
        pool = best.new_pool(None, 2)
        best.lib.kt_peak_rate(pool, best.lib.KT_PEAK_FMA_F32, 0.0001)
        best.ffi.release(pool)


def test_workers_are_pinned(best):
    cpus = sorted(os.sched_getaffinity(0))
    before = thread_ids()
    pool = best.new_pool(cpus)
    best.lib.kt_peak_rate(pool, best.lib.KT_PEAK_FMA_F32, 0.0001)  # every worker has started
    pinned = sorted(os.sched_getaffinity(int(thread)) for thread in thread_ids() - before)
    assert sorted(map(tuple, pinned)) == [(cpu,) for cpu in cpus]
    best.ffi.release(pool)


def test_a_cpu_that_does_not_exist_costs_nothing(best):
    pool = best.new_pool([10_000])
    assert best.lib.kt_peak_rate(pool, best.lib.KT_PEAK_FMA_F32, 0.001) > 0
    best.ffi.release(pool)


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_absurd_thread_counts_are_refused(best, threads):
    assert best.lib.kt_pool_new(threads, best.ffi.NULL) == best.ffi.NULL
    with pytest.raises(MachineError, match="cannot start 5000 worker threads"):
        best.new_pool(None, 5000)


def test_programs_and_memory_are_given_back(best):
    """50 programs of 8 MiB each: the process's address space does not grow."""

    def mapped() -> int:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")

    weight = packed_random(best, "I8_G32", 512, 64)

    def make() -> None:
        builder = Builder(best)
        builder.embed("x", normal(1, 1, 64))
        builder.norm("x", "normed")
        builder.linear("normed", "y", [weight])
        program = builder.build(4096)
        assert best.lib.kt_program_bytes(program.native) > 8 << 20
        program.forward(1)
        best.ffi.release(program.native)

    make()
    before = mapped()
    for _ in range(50):
        make()
    assert mapped() - before < 32 << 20


def test_allocated_pages_are_zero_and_aligned(best):
    for size in (1, 4096, 5 << 20):
        data = best.lib.kt_alloc(size, -1)
        whole = np.frombuffer(best.ffi.buffer(data, size), np.uint8)
        assert not whole.any()
        assert int(best.ffi.cast("uintptr_t", data)) % (2 << 20 if size > 2 << 20 else 4096) == 0
        whole[:] = 1
        best.lib.kt_free(data, size)
    assert best.lib.kt_alloc(0, -1) == best.ffi.NULL
    assert best.lib.kt_alloc(1 << 62, -1) == best.ffi.NULL


def test_a_node_that_does_not_exist_is_no_failure(best):
    data = best.lib.kt_alloc(4096, 900)
    assert data != best.ffi.NULL
    best.lib.kt_free(data, 4096)


@pytest.mark.parametrize("kind", ["FMA_F32", "DOT_INT8", "DOT_BF16"])
def test_floors_are_plausible(library, kind):
    """More than a scalar multiply-add per microsecond, less than any CPU of today per thread."""
    number = getattr(library.lib, f"KT_PEAK_{kind}")
    rate = library.lib.kt_peak_rate(pool_of(library.name, 1), number, 0.02)
    assert 1e9 < rate < 1e13
