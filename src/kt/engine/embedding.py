"""Embeddings: prompts whose final hidden states are wanted instead of an answer."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kt.engine.batch import F32, Batch, Executor
from kt.engine.pages import PagePool

Pooling = Literal["mean", "last"]


@dataclass
class _Job:
    """ids: the prompt. total [hidden]: the sum of the rows computed so far, or the last one."""

    ids: list[int]
    pooling: Pooling
    future: Future[F32]
    pages: list[int] = field(default_factory=list)
    done: int = 0
    total: F32 | None = None


class Embedder:
    """Embeds one prompt after the other, a chunk at a time, between the engine's steps.

    submit: any thread; the rest: the engine's. Pages are held while a prompt is computed, and never
    enter the prefix cache.
    """

    def __init__(self, executor: Executor, pool: PagePool) -> None:
        self._executor = executor
        self._pool = pool
        self._lock = threading.Lock()
        self._jobs: deque[_Job] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def submit(self, ids: list[int], pooling: Pooling) -> Future[F32]:
        """The embedding [hidden] of `ids`, later."""
        future: Future[F32] = Future()
        with self._lock:
            self._jobs.append(_Job(ids, pooling, future))
        return future

    def step(self, chunk: int) -> None:
        """Computes up to `chunk` tokens of the first prompt; waits if pages are short."""
        with self._lock:
            while self._jobs and self._jobs[0].future.cancelled():
                self._drop(self._jobs[0])
            if not self._jobs:
                return
            job = self._jobs[0]
        try:
            if not job.pages and not self._take_pages(job):
                return
            self._advance(job, chunk)
        except Exception as error:  # it ends this prompt only
            with self._lock:
                self._drop(job)
            _settle(job.future, error=error)
            return
        if job.done == len(job.ids):
            with self._lock:
                self._drop(job)
            _settle(job.future, value=job.total)

    def close(self, error: Exception) -> None:
        """Ends what still waits."""
        with self._lock:
            jobs = list(self._jobs)
            for job in jobs:
                self._drop(job)
        for job in jobs:
            _settle(job.future, error=error)

    def _take_pages(self, job: _Job) -> bool:
        count = -(-len(job.ids) // self._executor.page_tokens)
        if count > self._pool.free:
            return False
        job.pages = self._pool.take(count)
        return True

    def _advance(self, job: _Job, chunk: int) -> None:
        chunk = min(chunk, self._executor.max_batch_tokens)
        end = min(job.done + chunk, len(job.ids))
        batch = Batch(
            tokens=np.array(job.ids[job.done : end], np.int32),
            seq_start=np.array([0, end - job.done], np.int32),
            first_position=np.array([job.done], np.int32),
            page_table=np.array([job.pages], np.int32),
            logit_rows=np.zeros(0, np.int32),
        )
        rows = self._executor.embed(batch)
        job.done = end
        if job.pooling == "last":
            job.total = rows[-1]
            return
        part = rows.sum(axis=0, dtype=np.float32)
        job.total = part if job.total is None else job.total + part
        if end == len(job.ids):
            job.total = job.total / np.float32(len(job.ids))

    def _drop(self, job: _Job) -> None:
        self._jobs.remove(job)
        if job.pages:
            self._pool.release(job.pages)
            job.pages = []


def _settle(
    future: Future[F32], *, value: F32 | None = None, error: Exception | None = None
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    elif value is not None:
        future.set_result(value)
