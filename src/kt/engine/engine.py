"""The engine: one thread that schedules, runs the executor, and sends tokens to their handles."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kt.engine.batch import Batch, Executor, Sampled
from kt.engine.handle import Handle
from kt.engine.layout import BatchLayout
from kt.engine.request import EngineClosed, Reason, Request
from kt.engine.scheduler import Chunk, Scheduler
from kt.engine.sequence import Sequence
from kt.engine.stats import Meter, Stats
from kt.engine.text_stream import Detokenizer
from kt.errors import KtError

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

CLOSING = "the engine is shutting down"


class TextCodec(Protocol):
    """The part of a tokenizer that the engine needs."""

    @property
    def eos_ids(self) -> AbstractSet[int]: ...
    def detokenizer(self, *, shown: tuple[str, ...] = ()) -> Detokenizer: ...


class Engine:
    """Answers requests with one executor, many at a time.

    max_batch: sequences computed at once. prefill_chunk: prompt tokens a step, which bounds how
    long running answers wait for a new prompt. `limit` is the longest prompt and answer together.
    submit, Handle.cancel and stats may be called from any thread. The executor stays the caller's.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: TextCodec,
        *,
        model_name: str,
        max_batch: int = 16,
        prefill_chunk: int = 512,
        prefix_cache: bool = True,
    ) -> None:
        self.model_name = model_name
        self.limit = min(executor.context, executor.n_pages * executor.page_tokens)
        self._executor = executor
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(i for i in tokenizer.eos_ids if 0 <= i < executor.vocab)
        self._scheduler = Scheduler(
            n_pages=executor.n_pages,
            page_tokens=executor.page_tokens,
            max_tokens=executor.max_batch_tokens,
            max_batch=max_batch,
            prefill_chunk=prefill_chunk,
            prefix_cache=prefix_cache,
        )
        self._layout = BatchLayout(
            self._scheduler.max_batch,
            executor.max_batch_tokens,
            -(-self.limit // executor.page_tokens),
        )
        self._meter = Meter()
        self._requests = self._prompt_tokens = self._cached_tokens = 0
        self._completion_tokens = self._failures = 0
        # Guards what other threads touch: the four fields below.
        self._changed = threading.Condition()
        self._submitted: deque[Sequence] = deque()
        self._cancelled: deque[Handle] = deque()
        self._closing = False
        self._aborted = False
        self._thread = threading.Thread(target=self._run, name="kt-engine", daemon=True)

    def start(self) -> Self:
        """Starts the thread; requests submitted before wait for it."""
        self._thread.start()
        return self

    def submit(self, request: Request) -> Handle:
        """Queues a request. Raises ContextTooLong, InvalidRequest, EngineClosed after close()."""
        request.check(self._executor.vocab, self.limit)
        handle = Handle(self._cancel)
        detokenizer = self._tokenizer.detokenizer(shown=request.shown)
        sequence = Sequence(request, handle, detokenizer, self._eos_ids, self.limit)
        with self._changed:
            if self._closing:
                raise EngineClosed(CLOSING)
            self._submitted.append(sequence)
            self._changed.notify()
        return handle

    def stats(self) -> Stats:
        """Counts and rates of this moment."""
        scheduler = self._scheduler
        prefill_rate, decode_rate = self._meter.rates()
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._submitted),
            pages_total=scheduler.pool.total,
            pages_free=scheduler.pool.free,
            pages_cached=0 if scheduler.cache is None else len(scheduler.cache),
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=scheduler.preemptions,
            failures=self._failures,
            prefill_rate=prefill_rate,
            decode_rate=decode_rate,
        )

    def warm_up(self) -> None:
        """Runs the largest prefill before start(): what it needs is there. Raises KtError."""
        executor = self._executor
        tokens = min(executor.max_batch_tokens, self.limit)
        pages = np.arange(-(-tokens // executor.page_tokens), dtype=np.int32)
        executor.forward(
            Batch(
                tokens=np.zeros(tokens, np.int32),
                seq_start=np.array([0, tokens], np.int32),
                first_position=np.zeros(1, np.int32),
                page_table=pages.reshape(1, -1),
                logit_rows=np.array([tokens - 1], np.int32),
            )
        )

    def close(self, timeout: float = 10.0) -> None:
        """Takes no more requests, gives the present ones `timeout` seconds, cancels the rest."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if not self._thread.ident:
            self._abort_all()
            return
        self._thread.join(timeout)
        with self._changed:
            self._aborted = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(timeout=0.0 if error else 10.0)

    def _cancel(self, handle: Handle) -> None:
        with self._changed:
            self._cancelled.append(handle)
            self._changed.notify()

    def _run(self) -> None:
        while self._take_news():
            try:
                self._step()
            except Exception as error:  # a defect must not silence every later request
                self._fail(self._everything(), error)
        self._abort_all()

    def _take_news(self) -> bool:
        """Sleeps until there is something to do, and takes in what other threads asked for.

        False when the thread should end.
        """
        scheduler = self._scheduler
        with self._changed:
            while not (
                scheduler.running or scheduler.waiting or self._submitted or self._cancelled
            ):
                if self._closing:
                    return False
                self._changed.wait()
            if self._aborted:
                return False
            cancelled = list(self._cancelled)
            self._cancelled.clear()
            while self._submitted:
                self._requests += 1
                scheduler.add(self._submitted.popleft())
        for handle in cancelled:
            for sequence in self._everything():
                if sequence.handle is handle:
                    self._end(sequence, "cancelled", "the client cancelled the request")
        return True

    def _step(self) -> None:
        chunks = self._scheduler.schedule()
        if not chunks:
            return
        ending = [chunk.sequence for chunk in chunks if chunk.wants_logits]
        try:
            logits = self._executor.forward(self._layout.build(chunks))
            params = [sequence.sample_params() for sequence in ending]
            samples = self._executor.sample(logits, params) if params else []
        except Exception as error:  # whatever it is, only this step's requests end
            self._fail([chunk.sequence for chunk in chunks], error)
            return
        self._count(chunks)
        self._scheduler.advance(chunks)
        for sequence, sampled in zip(ending, samples, strict=True):
            try:
                self._accept(sequence, sampled)
            except Exception as error:  # one answer's text is no other's business
                self._fail([sequence], error)

    def _count(self, chunks: list[Chunk]) -> None:
        decodes = sum(chunk.sequence.n_output > 0 and chunk.tokens == 1 for chunk in chunks)
        self._meter.add(sum(chunk.tokens for chunk in chunks) - decodes, decodes)

    def _accept(self, sequence: Sequence, sampled: Sampled) -> None:
        if sequence.n_output == 0:
            self._prompt_tokens += sequence.n_prompt
            self._cached_tokens += sequence.cached_tokens or 0
        self._completion_tokens += 1
        reason = sequence.accept(sampled)
        if reason is not None:
            self._end(sequence, reason)

    def _end(self, sequence: Sequence, reason: Reason, message: str = "") -> None:
        """Pages first: whoever sees the last event may count on them being free."""
        if self._scheduler.remove(sequence):
            sequence.finish(reason, message)

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        self._failures += 1
        message = (
            error.message if isinstance(error, KtError) else f"{type(error).__name__}: {error}"
        )
        _log.error("a step with %d requests failed: %s", len(sequences), message, exc_info=error)
        for sequence in sequences:
            self._end(sequence, "error", message)

    def _everything(self) -> list[Sequence]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    def _abort_all(self) -> None:
        with self._changed:
            while self._submitted:
                self._scheduler.add(self._submitted.popleft())
        for sequence in self._everything():
            self._end(sequence, "cancelled", CLOSING)
