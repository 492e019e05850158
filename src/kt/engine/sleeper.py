"""An executor that gives its memory back while nobody asks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kt.engine.batch import F32, Batch, Executor, Sampled, SampleParams

_log = logging.getLogger(__name__)


class Sleeper:
    """An Executor over those that `factory` makes. The first is made at once; after unload(), the
    next pass makes another. What was in the KV pages is lost then.

    For one thread at a time; `loaded` for any.
    """

    def __init__(self, factory: Callable[[], Executor]) -> None:
        self._factory = factory
        self._executor: Executor | None = factory()
        self.vocab = self._executor.vocab
        self.context = self._executor.context
        self.max_batch_tokens = self._executor.max_batch_tokens
        self.max_logits = self._executor.max_logits
        self.page_tokens = self._executor.page_tokens
        self.n_pages = self._executor.n_pages

    @property
    def loaded(self) -> bool:
        return self._executor is not None

    def unload(self) -> None:
        """Frees memory and threads."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
            _log.info("the model is unloaded; the next request loads it again")

    def forward(self, batch: Batch) -> F32:
        """See Executor. Raises what the factory raises, DoesNotFit for one."""
        return self._awake().forward(batch)

    def sample(self, logits: F32, params: list[SampleParams]) -> list[Sampled]:
        """See Executor."""
        return self._awake().sample(logits, params)

    def embed(self, batch: Batch) -> F32:
        """See Executor."""
        return self._awake().embed(batch)

    def close(self) -> None:
        """See Executor."""
        self.unload()

    def _awake(self) -> Executor:
        if self._executor is None:
            self._executor = self._factory()
        return self._executor
