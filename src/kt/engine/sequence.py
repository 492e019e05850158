"""A request on its way through the engine."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Set as AbstractSet

from kt.engine.batch import Sampled, SampleParams
from kt.engine.handle import Handle
from kt.engine.int_vector import IntVector
from kt.engine.prefix_cache import ROOT
from kt.engine.request import Finished, Reason, Request, Timings
from kt.engine.text_stream import Detokenizer, TextStream


class Sequence:
    """History, pages and progress of one request.

    history: prompt then output. computed: how many of its positions are in the pages. stored and
    key: how many pages the prefix cache knows, and the key of the last. limit: the longest history
    allowed.
    """

    def __init__(
        self,
        request: Request,
        handle: Handle,
        detokenizer: Detokenizer,
        eos_ids: AbstractSet[int],
        context: int,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.handle = handle
        self.history = IntVector(request.prompt_ids, spare=256)
        self.n_prompt = len(request.prompt_ids)
        self.limit = min(context, self.n_prompt + (sampling.max_tokens or context))
        self.pages = IntVector()
        self.computed = 0
        self.stored = 0
        self.key = ROOT
        self.cached_tokens: int | None = None  # None until first admitted
        self._stop_ids = frozenset() if sampling.ignore_eos else frozenset(eos_ids)
        self._text = TextStream(detokenizer, sampling.stop, sampling.min_tokens)
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % (1 << 64)
        self._bias = tuple(sampling.logit_bias.items())
        self._bias_without_end = self._bias + tuple((i, -math.inf) for i in sorted(eos_ids))
        self._submitted = time.monotonic()
        self._started = 0.0
        self._first_token = 0.0

    @property
    def pending(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return len(self.history) - self.computed

    @property
    def n_output(self) -> int:
        return len(self.history) - self.n_prompt

    def start(self, cached_tokens: int) -> None:
        """Notes the first admission; later ones follow a preemption."""
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens
            self._started = time.monotonic()

    def sample_params(self) -> SampleParams:
        """How the next token is drawn; the counter is its index in the output."""
        s = self.request.sampling
        return SampleParams(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            repetition_penalty=s.repetition_penalty,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            n_logprobs=-1 if s.logprobs is None else s.logprobs,
            seed=self._seed,
            position=self.n_output,
            n_prompt=self.n_prompt,
            history=self.history.view(),
            bias=self._bias_without_end if self.n_output < s.min_tokens else self._bias,
        )

    def accept(self, sampled: Sampled) -> Reason | None:
        """Takes the next token, sends its text, and says why the request ends here, if it does."""
        self.history.append(sampled.token)
        if not self._first_token:
            self._first_token = time.monotonic()
        if sampled.token in self._stop_ids:
            return "stop"
        delta = self._text.push(sampled)
        if delta is not None:
            self.handle.put(delta)
        if self._text.stopped is not None:
            return "stop"
        return "length" if len(self.history) >= self.limit else None

    def finish(self, reason: Reason, message: str = "") -> None:
        """Sends held back text, if it is part of the answer, and the last event."""
        if self._text.stopped is None:
            rest = self._text.finish()
            if rest is not None:
                self.handle.put(rest)
        self.handle.put(
            Finished(
                reason=reason,
                message=message,
                prompt_tokens=self.n_prompt,
                completion_tokens=self.n_output,
                cached_tokens=self.cached_tokens or 0,
                timings=self._timings(),
                stop=self._text.stopped,
            )
        )

    def _timings(self) -> Timings:
        now = time.monotonic()
        started = self._started or now
        first = self._first_token or now
        return Timings(started - self._submitted, first - started, now - first)
