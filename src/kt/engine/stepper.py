"""One step: what the scheduler picked goes through the executor and on to the handles."""

from __future__ import annotations

import logging
from itertools import islice

from kt.engine.batch import Executor, Sampled, SampleParams
from kt.engine.grammar import Constraint
from kt.engine.layout import BatchLayout
from kt.engine.masks import Masks
from kt.engine.request import InvalidRequest, Reason
from kt.engine.scheduler import Chunk, Scheduler
from kt.engine.sequence import Sequence
from kt.engine.stats import Counters
from kt.errors import KtError, NotFinite

_log = logging.getLogger(__name__)


class Stepper:
    """For the engine's thread. limit: the longest sequence."""

    def __init__(
        self, executor: Executor, scheduler: Scheduler, counters: Counters, limit: int
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._counters = counters
        self._masks = Masks(scheduler.max_batch, executor.vocab)
        self._layout = BatchLayout(
            scheduler.max_batch,
            executor.max_batch_tokens,
            executor.max_logits,
            -(-limit // executor.page_tokens),
        )

    def run(self) -> None:
        """Computes one step; nothing if there are no sequences."""
        for sequence in self._scheduler.running:
            sequence.guess()
        chunks = self._scheduler.schedule()
        for chunk, samples in self._compute(chunks) if chunks else []:
            try:
                self._take(chunk, samples)
            except InvalidRequest as error:
                self._refuse(chunk.sequence, error)
            except Exception as error:  # one answer's text is no other's business
                self.fail([chunk.sequence], error)

    def close(self) -> None:
        """Ends its helper."""
        self._masks.close()

    def end(self, sequence: Sequence, reason: Reason, message: str = "") -> None:
        """Pages first: whoever sees the last event may count on them being free."""
        if self._scheduler.remove(sequence):
            sequence.finish(reason, message)

    def _refuse(self, sequence: Sequence, error: InvalidRequest) -> None:
        """Ends one whose request has turned out to be at fault; what is in its pages is right."""
        if self._scheduler.remove(sequence):
            sequence.finish("error", error.message, error)

    def fail(self, sequences: list[Sequence], error: Exception) -> None:
        """Ends sequences with an error; what is in their pages is not found again."""
        self._counters.failures += 1
        message = (
            error.message if isinstance(error, KtError) else f"{type(error).__name__}: {error}"
        )
        _log.error("a step with %d requests failed: %s", len(sequences), message, exc_info=error)
        for sequence in sequences:
            if self._scheduler.remove(sequence, spoilt=True):
                sequence.finish("error", message)

    def _compute(self, chunks: list[Chunk]) -> list[tuple[Chunk, list[Sampled]]]:
        """Runs the chunks; what fails ends, and is left out of what comes back."""
        try:
            with self._masks.of(_constraints(chunks)):
                params = [row for chunk in chunks for row in _params(chunk)]
                logits = self._executor.forward(self._layout.build(chunks))
            samples = self._executor.sample(logits, params) if params else []
        except Exception as error:  # whatever it is, only this step's requests end
            if isinstance(error, NotFinite) and len(chunks) > 1:
                return [pair for chunk in chunks for pair in self._compute([chunk])]
            self.fail([chunk.sequence for chunk in chunks], error)
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
        self._counters.draft_tokens += len(draft)
        self._counters.draft_accepted += accepted
        self._counters.meter.add(0 if decoding else chunk.tokens, accepted + decoding)

    def _accept(self, sequence: Sequence, sampled: Sampled) -> bool:
        """Whether the sequence goes on."""
        if sequence.n_output == 0:
            self._counters.prompt_tokens += sequence.n_prompt
            self._counters.cached_tokens += sequence.cached_tokens or 0
        if len(sequence.history) >= sequence.limit:  # only its prompt was of interest
            self.end(sequence, "length")
            return False
        self._counters.completion_tokens += 1
        reason = sequence.accept(sampled)
        if reason is not None:
            self.end(sequence, reason)
        return reason is None


def _constraints(chunks: list[Chunk]) -> list[Constraint]:
    """Those of the answers that get a token now."""
    found = [chunk.sequence.constraint for chunk in chunks if chunk.draws]
    return [constraint for constraint in found if constraint is not None and constraint.active]


def _params(chunk: Chunk) -> list[SampleParams]:
    """How the chunk's rows with logits are read."""
    sequence = chunk.sequence
    scored = sequence.scores.params(chunk.scored) if sequence.scores is not None else []
    return scored + (sequence.sample_params(chunk.draft) if chunk.draws else [])
