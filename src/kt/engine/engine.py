"""The engine: one thread that schedules, runs the executor, and sends tokens to their handles."""

from __future__ import annotations

import threading
import time
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from kt.engine import pace
from kt.engine.batch import F32, Executor
from kt.engine.doorbell import Doorbell
from kt.engine.draft import Drafter
from kt.engine.embedding import Embedder, Pooling
from kt.engine.grammar import Constraint, GrammarCompiler, Vocabulary
from kt.engine.handle import Handle
from kt.engine.inbox import CLOSING, Inbox, News
from kt.engine.prompt_scores import PromptScores
from kt.engine.request import EngineClosed, Grammar, QueueFull, Request
from kt.engine.scheduler import Scheduler
from kt.engine.sequence import Sequence
from kt.engine.sleeper import Sleeper
from kt.engine.stats import Counters, Stats
from kt.engine.stepper import Stepper
from kt.engine.text_stream import Detokenizer
from kt.units import Choice

if TYPE_CHECKING:
    from typing_extensions import Self


class TextCodec(Vocabulary, Protocol):
    """The part of a tokenizer that the engine needs."""

    @property
    def eos_ids(self) -> AbstractSet[int]: ...
    def detokenizer(self, *, shown: tuple[str, ...] = ()) -> Detokenizer: ...


class Engine:
    """Answers requests with one executor, many at a time.

    max_batch: sequences computed at once. prefill_chunk: the most prompt tokens a step; warm_up()
    chooses how many of them while answers are running. max_queue: requests that may wait for a
    place (None: any number). speculate: guess greedy answers' next tokens from their own text;
    it never changes them. unload_after: seconds without requests after which a Sleeper gives up
    its memory. `limit` is the longest prompt and answer together. submit, prepare,
    Handle.cancel and stats may be called from any thread. The executor stays the caller's.
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
        max_queue: int | None = None,
        speculate: Literal["ngram"] | None = None,
        unload_after: float | None = None,
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
            max_logits=executor.max_logits,
            max_batch=max_batch,
            prefill_chunk=prefill_chunk,
            prefix_cache=prefix_cache,
        )
        self._counters = Counters()
        self._stepper = Stepper(executor, self._scheduler, self._counters, self.limit)
        self._embedder = Embedder(executor, self._scheduler.pool)
        self._grammars = GrammarCompiler(tokenizer, executor.vocab, self._eos_ids)
        self._max_queue = max_queue
        self._speculate = speculate is not None
        self._chunk = Choice(self._scheduler.shared_chunk, "not measured")
        self._sleeper = executor if isinstance(executor, Sleeper) else None
        self._unload_after = unload_after
        self._inbox = Inbox()
        self._bell = Doorbell()
        self._thread = threading.Thread(target=self._run, name="kt-engine", daemon=True)

    def start(self) -> Self:
        """Starts the thread; requests submitted before wait for it."""
        self._thread.start()
        return self

    def prepare(self, grammar: Grammar) -> None:
        """Compiles a grammar for the requests that follow, which can take ten seconds: a caller
        that must not wait in submit does this elsewhere. Raises InvalidGrammar.
        """
        self._grammars.constraint(grammar)

    def knows(self, grammar: Grammar) -> bool:
        """Whether `prepare` would have nothing to do."""
        return self._grammars.knows(grammar)

    def submit(self, request: Request) -> Handle:
        """Queues a request. Raises ContextTooLong, InvalidGrammar, InvalidRequest; QueueFull;
        EngineClosed after close().
        """
        request.check(self._executor.vocab, self.limit)
        self._check_room()
        handle = Handle(self._inbox.cancel, self._bell)
        sequence = Sequence(
            request,
            handle,
            self._tokenizer.detokenizer(shown=request.shown),
            self._eos_ids,
            self.limit,
            constraint=self._constraint(request),
            scores=self._scores(request),
            drafter=Drafter() if self._speculate else None,
        )
        self._inbox.submit(sequence, self._check_room)
        return handle

    def embed(self, prompt_ids: list[int], pooling: Pooling) -> Future[F32]:
        """The mean or the last of the prompt's final hidden states [hidden] float32, later.

        Raises ContextTooLong, InvalidRequest, EngineClosed. Cancelling the future drops it.
        """
        Request(prompt_ids).check(self._executor.vocab, self.limit)
        return self._inbox.also(lambda: self._embedder.submit(prompt_ids, pooling))

    def _constraint(self, request: Request) -> Constraint | None:
        if request.grammar is None:
            return None
        return self._grammars.constraint(request.grammar, request.grammar_after)

    def _scores(self, request: Request) -> PromptScores | None:
        n_best = request.sampling.prompt_logprobs
        if n_best is None:
            return None
        detokenizer = self._tokenizer.detokenizer(shown=request.shown)
        return PromptScores(request.prompt_ids, n_best, detokenizer)

    def _check_room(self) -> None:
        """Raises QueueFull, EngineClosed."""
        self._inbox.check_open()
        scheduler = self._scheduler
        if self._max_queue is not None:
            present = len(self._inbox) + len(scheduler.waiting) + len(scheduler.running)
            if present >= scheduler.max_batch + self._max_queue:
                raise QueueFull(self._max_queue)

    def stats(self) -> Stats:
        """Counts and rates of this moment."""
        scheduler, counters = self._scheduler, self._counters
        prefill_rate, decode_rate = counters.meter.rates()
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._inbox),
            pages_total=scheduler.pool.total,
            pages_free=scheduler.pool.free,
            pages_cached=0 if scheduler.cache is None else len(scheduler.cache),
            requests=counters.requests,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            completion_tokens=counters.completion_tokens,
            preemptions=scheduler.preemptions,
            failures=counters.failures,
            draft_tokens=counters.draft_tokens,
            draft_accepted=counters.draft_accepted,
            prefill_chunk=self._chunk,
            prefill_rate=prefill_rate,
            decode_rate=decode_rate,
            loaded=self._sleeper is None or self._sleeper.loaded,
        )

    def stop_compiling(self) -> None:
        """Ends `prepare` wherever it is, with EngineClosed: no grammar is compiled any more."""
        self._grammars.close()

    def warm_up(self) -> None:
        """Runs the largest prefill and a small one before start(): what they need is there, and
        their times decide how much prompt a step computes. Raises KtError.
        """
        chunk = pace.measure(self._executor, self.limit)
        most = self._scheduler.shared_chunk
        self._chunk = chunk if chunk.value < most else Choice(most, chunk.reason)
        self._scheduler.shared_chunk = self._chunk.value

    def close(self, timeout: float = 10.0) -> None:
        """Takes no more requests, gives the present ones `timeout` seconds, cancels the rest."""
        self._inbox.close()
        self.stop_compiling()
        if not self._thread.ident:
            self._abort_all()
            return
        self._thread.join(timeout)
        self._inbox.abort()
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

    def _run(self) -> None:
        while (news := self._inbox.take(self._busy, self._patience())) is not None:
            try:
                self._heed(news)
                self._bell.ring()
                self._stepper.run()
                self._bell.ring()
                self._embedder.step(self._scheduler.shared_chunk)
            except Exception as error:  # a defect must not silence every later request
                self._stepper.fail(self._everything(), error)
                self._bell.ring()
        self._abort_all()

    def _heed(self, news: News) -> None:
        """Takes in what other threads asked for."""
        self._counters.requests += len(news.submitted)
        for sequence in news.submitted:
            self._scheduler.add(sequence)
        if news.idle:
            self._unload()
        for handle in news.cancelled:
            for sequence in self._everything():
                if sequence.handle is handle:
                    self._stepper.end(sequence, "cancelled", "the client cancelled the request")
        self._end_late()

    def _busy(self) -> bool:
        scheduler = self._scheduler
        return bool(scheduler.running or scheduler.waiting or self._embedder.busy)

    def _patience(self) -> float | None:
        """Seconds to wait for work before the model is unloaded."""
        return self._unload_after if self._sleeper is not None and self._sleeper.loaded else None

    def _unload(self) -> None:
        if self._sleeper is not None:
            if self._scheduler.cache is not None:
                self._scheduler.cache.clear()
            self._sleeper.unload()

    def _end_late(self) -> None:
        now = time.monotonic()
        for sequence in self._everything():
            if sequence.deadline < now:
                seconds = sequence.request.timeout
                self._stepper.end(
                    sequence, "timeout", f"the request's {seconds:g} seconds are over"
                )

    def _everything(self) -> list[Sequence]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    def _abort_all(self) -> None:
        for sequence in self._inbox.drain():
            self._scheduler.add(sequence)
        for sequence in self._everything():
            self._stepper.end(sequence, "cancelled", CLOSING)
        self._embedder.close(EngineClosed(CLOSING))
        self._stepper.close()
        self._bell.ring()
