"""The engine: one thread that schedules, runs the executor, and sends tokens to their handles."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from collections.abc import Set as AbstractSet
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from kt.engine import pace
from kt.engine.batch import Executor, Sampled, SampleParams
from kt.engine.draft import Drafter
from kt.engine.grammar import Constraint, GrammarCompiler
from kt.engine.handle import Handle
from kt.engine.layout import BatchLayout
from kt.engine.prompt_scores import PromptScores
from kt.engine.request import EngineClosed, Grammar, QueueFull, Reason, Request
from kt.engine.scheduler import Chunk, Scheduler
from kt.engine.sequence import Sequence
from kt.engine.stats import Meter, Stats
from kt.engine.text_stream import Detokenizer
from kt.errors import KtError, NotFinite
from kt.units import Choice

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

CLOSING = "the engine is shutting down"


class TextCodec(Protocol):
    """The part of a tokenizer that the engine needs."""

    @property
    def eos_ids(self) -> AbstractSet[int]: ...
    @property
    def special_ids(self) -> Mapping[str, int]: ...
    def token_bytes(self) -> SequenceOf[bytes]: ...
    def encode(self, text: str, *, add_bos: bool = True) -> list[int]: ...
    def detokenizer(self, *, shown: tuple[str, ...] = ()) -> Detokenizer: ...


class Engine:
    """Answers requests with one executor, many at a time.

    max_batch: sequences computed at once. prefill_chunk: the most prompt tokens a step; warm_up()
    chooses how many of them while answers are running. max_queue: requests that may wait for a
    place (None: any number). speculate: guess greedy answers' next tokens from their own text;
    it never changes them. `limit` is the longest prompt and answer together. submit, prepare,
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
        self._layout = BatchLayout(
            self._scheduler.max_batch,
            executor.max_batch_tokens,
            executor.max_logits,
            -(-self.limit // executor.page_tokens),
        )
        self._grammars = GrammarCompiler(tokenizer, executor.vocab, self._eos_ids)
        self._max_queue = max_queue
        self._speculate = speculate is not None
        self._chunk = Choice(self._scheduler.shared_chunk, "not measured")
        self._meter = Meter()
        self._draft_tokens = self._draft_accepted = 0
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

    def prepare(self, grammar: Grammar) -> None:
        """Compiles a grammar for the requests that follow, which can take a second: a caller that
        must not wait in submit does this elsewhere. Raises InvalidGrammar.
        """
        self._grammars.constraint(grammar)

    def submit(self, request: Request) -> Handle:
        """Queues a request. Raises ContextTooLong, InvalidGrammar, InvalidRequest; QueueFull;
        EngineClosed after close().
        """
        request.check(self._executor.vocab, self.limit)
        self._check_room()
        handle = Handle(self._cancel)
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
        with self._changed:
            self._check_room()
            self._submitted.append(sequence)
            self._changed.notify()
        return handle

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
        if self._closing:
            raise EngineClosed(CLOSING)
        scheduler = self._scheduler
        if self._max_queue is not None:
            present = len(self._submitted) + len(scheduler.waiting) + len(scheduler.running)
            if present >= scheduler.max_batch + self._max_queue:
                raise QueueFull(self._max_queue)

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
            draft_tokens=self._draft_tokens,
            draft_accepted=self._draft_accepted,
            prefill_chunk=self._chunk,
            prefill_rate=prefill_rate,
            decode_rate=decode_rate,
        )

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
        self._end_late()
        return True

    def _end_late(self) -> None:
        now = time.monotonic()
        for sequence in self._everything():
            if sequence.deadline < now:
                seconds = sequence.request.timeout
                self._end(sequence, "timeout", f"the request's {seconds:g} seconds are over")

    def _step(self) -> None:
        for sequence in self._scheduler.running:
            sequence.guess()
        chunks = self._scheduler.schedule()
        for chunk, samples in self._compute(chunks) if chunks else []:
            try:
                self._take(chunk, samples)
            except Exception as error:  # one answer's text is no other's business
                self._fail([chunk.sequence], error)

    def _compute(self, chunks: list[Chunk]) -> list[tuple[Chunk, list[Sampled]]]:
        """Runs the chunks; what fails ends, and is left out of what comes back."""
        try:
            params = [row for chunk in chunks for row in _params(chunk)]
            logits = self._executor.forward(self._layout.build(chunks))
            samples = self._executor.sample(logits, params) if params else []
        except Exception as error:  # whatever it is, only this step's requests end
            if isinstance(error, NotFinite) and len(chunks) > 1:
                return [pair for chunk in chunks for pair in self._compute([chunk])]
            self._fail([chunk.sequence for chunk in chunks], error)
            return []
        rows = iter(samples)
        return [(chunk, list(islice(rows, chunk.logits))) for chunk in chunks]

    def _take(self, chunk: Chunk, samples: list[Sampled]) -> None:
        """Goes on with a sequence by what was computed of it."""
        sequence, draft = chunk.sequence, chunk.draft
        decoding = sequence.n_output > 0 and chunk.tokens == 1
        self._scheduler.advance(sequence, chunk.tokens)
        if sequence.scores is not None:
            sequence.scores.add(samples[: chunk.scored])
            sequence.send_scores()
        accepted = 0
        for sampled in samples[chunk.scored :]:
            if not self._accept(sequence, sampled):
                break
            if accepted == len(draft) or draft[accepted] != sampled.token:
                break
            self._scheduler.advance(sequence, 1)
            accepted += 1
        sequence.learn(len(draft), accepted)
        self._draft_tokens += len(draft)
        self._draft_accepted += accepted
        self._meter.add(0 if decoding else chunk.tokens, accepted + decoding)

    def _accept(self, sequence: Sequence, sampled: Sampled) -> bool:
        """Whether the sequence goes on."""
        if sequence.n_output == 0:
            self._prompt_tokens += sequence.n_prompt
            self._cached_tokens += sequence.cached_tokens or 0
        if len(sequence.history) >= sequence.limit:  # only its prompt was of interest
            self._end(sequence, "length")
            return False
        self._completion_tokens += 1
        reason = sequence.accept(sampled)
        if reason is not None:
            self._end(sequence, reason)
        return reason is None

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
            if self._scheduler.remove(sequence, spoilt=True):
                sequence.finish("error", message)

    def _everything(self) -> list[Sequence]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    def _abort_all(self) -> None:
        with self._changed:
            while self._submitted:
                self._scheduler.add(self._submitted.popleft())
        for sequence in self._everything():
            self._end(sequence, "cancelled", CLOSING)


def _params(chunk: Chunk) -> list[SampleParams]:
    """How the chunk's rows with logits are read."""
    sequence = chunk.sequence
    scored = sequence.scores.params(chunk.scored) if sequence.scores is not None else []
    return scored + (sequence.sample_params(chunk.draft) if chunk.draws else [])
