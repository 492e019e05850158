"""A request on its way through the engine."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Set as AbstractSet

import numpy as np

from kt.engine.batch import I32, Sampled, SampleParams
from kt.engine.draft import Drafter
from kt.engine.grammar import Constraint
from kt.engine.handle import Handle
from kt.engine.int_vector import IntVector
from kt.engine.prefix_cache import ROOT
from kt.engine.prompt_scores import PromptScores
from kt.engine.request import Finished, InvalidRequest, Reason, Request, Timings
from kt.engine.text_stream import Detokenizer, TextStream


class Sequence:
    """History, pages and progress of one request.

    history: prompt then output. computed: how many of its positions are in the pages. stored and
    key: how many pages the prefix cache knows, and the key of the last. limit: the longest history
    allowed. draft: guesses at the tokens behind the history. constraint: what the answer must look
    like. deadline: on the monotonic clock.
    """

    def __init__(
        self,
        request: Request,
        handle: Handle,
        detokenizer: Detokenizer,
        eos_ids: AbstractSet[int],
        context: int,
        *,
        constraint: Constraint | None = None,
        scores: PromptScores | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.handle = handle
        self.history = IntVector(request.prompt_ids, spare=256)
        self.n_prompt = len(request.prompt_ids)
        most = context if sampling.max_tokens is None else sampling.max_tokens
        self.limit = min(context, self.n_prompt + most)
        self.pages = IntVector()
        self.computed = 0
        self.stored = 0
        self.key = ROOT
        self.cached_tokens: int | None = None  # None until first admitted
        self.draft: tuple[int, ...] = ()
        self.scores = scores
        self.constraint = constraint
        self._drafter = drafter if constraint is None and sampling.greedy else None
        ends_never = sampling.ignore_eos and constraint is None
        self._stop_ids = frozenset() if ends_never else frozenset(eos_ids)
        self._text = TextStream(detokenizer, sampling.stop, sampling.min_tokens)
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % (1 << 64)
        self._bias = tuple(sampling.logit_bias.items())
        self._bias_without_end = self._bias + tuple((i, -math.inf) for i in sorted(eos_ids))
        self._submitted = time.monotonic()
        self.deadline = self._submitted + (request.timeout or math.inf)
        self._started = 0.0
        self._first_token = 0.0

    @property
    def pending(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return len(self.history) - self.computed

    @property
    def n_output(self) -> int:
        return len(self.history) - self.n_prompt

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log probabilities are wanted and not computed yet."""
        return 0 if self.scores is None else self.scores.missing

    def start(self, cached_tokens: int) -> None:
        """Notes an admission that found so many tokens in the prefix cache; ones after the first
        follow a preemption.
        """
        self.computed = cached_tokens
        if self.unscored and self.scores is not None:
            self.scores.restart()
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens
            self._started = time.monotonic()

    def guess(self) -> None:
        """Sets draft for the next step."""
        self.draft = ()
        if self._drafter is not None and self.pending == 1:
            room = self.limit - len(self.history) - 1
            self.draft = self._drafter.propose(self.history.view(), room)

    def learn(self, proposed: int, accepted: int) -> None:
        """Notes how many of a step's guesses were right."""
        if self._drafter is not None and proposed:
            self._drafter.learn(proposed, accepted)

    def sample_params(self, draft: tuple[int, ...] = ()) -> list[SampleParams]:
        """How the next token is drawn, and one more behind each guess; the counter is a token's
        index in the output.
        """
        known = len(self.history)
        history = self.history.view()
        if draft:
            history = np.concatenate([history, np.array(draft, np.int32)])
        return [self._params(history[: known + i]) for i in range(len(draft) + 1)]

    def _params(self, history: I32) -> SampleParams:
        s = self.request.sampling
        position = len(history) - self.n_prompt
        answering = self.constraint is None or self.constraint.active
        may_end = position >= s.min_tokens and answering
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
            position=position,
            n_prompt=self.n_prompt,
            history=history,
            bias=self._bias if may_end else self._bias_without_end,
            mask=None if self.constraint is None else self.constraint.mask,
        )

    def send_scores(self) -> None:
        """Sends the prompt's log probabilities once they are complete, before anything else."""
        if self.scores is not None and not self.scores.sent and not self.scores.missing:
            self.handle.put(self.scores.delta())

    def accept(self, sampled: Sampled) -> Reason | None:
        """Takes the next token, sends its text, and says why the request ends here, if it does.

        Raises InvalidGrammar.
        """
        if self.constraint is not None:
            self.constraint.check()
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
        if self.constraint is not None:
            self.constraint.accept(sampled.token)
            if self.constraint.complete:
                return "stop"
        return "length" if len(self.history) >= self.limit else None

    def finish(
        self, reason: Reason, message: str = "", blamed: InvalidRequest | None = None
    ) -> None:
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
                blamed=blamed,
            )
        )

    def _timings(self) -> Timings:
        now = time.monotonic()
        started = self._started or now
        first = self._first_token or now
        return Timings(started - self._submitted, first - started, now - first)
