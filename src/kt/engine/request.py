"""What a client asks of the engine and what it is told back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kt.errors import KtError

Reason = Literal["stop", "length", "cancelled", "timeout", "error"]
GrammarKind = Literal["json_object", "json_schema", "regex", "lark", "gbnf"]
MAX_LOGPROBS = 20


class InvalidRequest(KtError):
    """A request that can never run; the message names the field and the value. param: the field of
    Request or Sampling that is at fault, "prompt" for the prompt; "" where it is none alone.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", param: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for an answer. prompt_tokens: its length; limit: all positions."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but the context holds {limit} "
            "and at least one must be left for the answer",
            hint="shorten the prompt; a larger --context helps where the model has more positions",
            param="prompt",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class InvalidGrammar(InvalidRequest):
    """A grammar, schema or regular expression that cannot be compiled; the message says why. param:
    Grammar.origin.
    """


class QueueFull(KtError):
    """As many requests wait as may; a later one may be taken. limit: how many may wait."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} requests are waiting already, and no more may", hint="try again later"
        )
        self.limit = limit


class EngineClosed(KtError):
    """The engine is shutting down or has not started, and takes no requests."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when to stop.

    max_tokens None: to the end of the context; 0 only with prompt_logprobs. temperature 0: greedy.
    top_k 0, top_p 1, min_p 0: off. repetition_penalty (1: off) covers prompt and output; presence
    and frequency (0: off) the output. seed None: a random one. stop: texts that end the answer and
    are never part of it. logprobs None: none; n: the chosen token's and the n best (0 to 20) of the
    raw distribution. prompt_logprobs: the same for every prompt token, in Delta.prompt of the first
    event. logit_bias: token id -> number added to its logit. min_tokens: no end token and no stop
    before.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0 or self.top_k == 1

    def check(self, vocab: int) -> None:
        """Raises InvalidRequest for the first value outside its range."""
        least = 1 if self.prompt_logprobs is None else 0
        _require(self.max_tokens is None or self.max_tokens >= least, "max_tokens", self.max_tokens)
        _require(0.0 <= self.temperature <= 100.0, "temperature", self.temperature)
        _require(self.top_k >= 0, "top_k", self.top_k)
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p)
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p)
        _require(
            0.01 <= self.repetition_penalty <= 100.0, "repetition_penalty", self.repetition_penalty
        )
        _require(abs(self.presence_penalty) <= 100.0, "presence_penalty", self.presence_penalty)
        _require(abs(self.frequency_penalty) <= 100.0, "frequency_penalty", self.frequency_penalty)
        _require(all(self.stop), "stop", "")
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _require(count is None or 0 <= count <= MAX_LOGPROBS, name, count)
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens)
        for token, bias in self.logit_bias.items():
            _require(0 <= token < vocab, "logit_bias token", token)
            _require(not math.isnan(bias) and bias < math.inf, f"logit_bias of token {token}", bias)


def _require(allowed: bool, name: str, value: object) -> None:
    if not allowed:
        param = name.partition(" ")[0]  # "prompt token", "logit_bias of token 5"
        raise InvalidRequest(f"{name} = {value!r} is outside its range", param=param)


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like. text: a JSON schema as JSON, a regular expression, a grammar
    in Lark's or llama.cpp's (gbnf) form; empty for json_object, any JSON object. origin: the
    field of the client's request that it was made from. parts: what it was put together from, to
    find the one to blame if it cannot be compiled.
    """

    kind: GrammarKind
    text: str = ""
    origin: str = field(default="", compare=False)
    parts: tuple[Grammar, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Request:
    """One answer to one prompt. id is only used in logs; n answers are n requests, which share the
    computation of an equal prompt.

    grammar: the answer's form. grammar_after: it binds what follows the first occurrence of this
    text in the output ("</think>"), which has to come before the answer can end. timeout: seconds
    from submission to Finished("timeout"), what was generated until then included. shown: special
    tokens whose text belongs to the answer; that of others is left out.
    """

    prompt_ids: list[int]
    sampling: Sampling = field(default_factory=Sampling)
    id: str = ""
    grammar: Grammar | None = None
    grammar_after: str | None = None
    timeout: float | None = None
    shown: tuple[str, ...] = ()

    def check(self, vocab: int, limit: int) -> None:
        """Raises ContextTooLong, InvalidRequest. vocab: logits per row; limit: all positions."""
        if not self.prompt_ids:
            raise InvalidRequest(
                "the prompt is empty", hint="send at least one token", param="prompt"
            )
        if len(self.prompt_ids) >= limit:
            raise ContextTooLong(len(self.prompt_ids), limit)
        low, high = min(self.prompt_ids), max(self.prompt_ids)
        _require(low >= 0, "prompt token", low)
        _require(high < vocab, "prompt token", high)
        _require(self.timeout is None or self.timeout > 0, "timeout", self.timeout)
        _require(self.grammar_after != "", "grammar_after", self.grammar_after)
        self.sampling.check(vocab)


@dataclass(frozen=True)
class TokenInfo:
    """One emitted token. text: what it added to the answer; "" inside a character or if special.

    logprob and best (pairs of token id and log probability, best first) belong to the raw
    distribution; they are None and empty unless asked for.
    """

    id: int
    text: str
    logprob: float | None = None
    best: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """New text and the tokens it came from, whole ones. text joins theirs.

    Only the last Delta of an answer may have more, the rest of an unfinished character, or no text.
    prompt: every prompt token, if Sampling.prompt_logprobs asked for them; they come in one Delta
    without text or tokens, before all others. The first of them has no logprob.
    """

    text: str
    tokens: list[TokenInfo]
    prompt: list[TokenInfo] = field(default_factory=list)


@dataclass(frozen=True)
class Timings:
    """Seconds. queue: to the first pass; prefill: then to the first token; decode: the rest."""

    queue: float
    prefill: float
    decode: float


@dataclass(frozen=True)
class Finished:
    """The last event of a request.

    message explains "error", "cancelled" and "timeout". completion_tokens counts every generated
    token, a final end token and those of a stop text included; cached_tokens: prompt tokens found
    in the prefix cache.
    stop: the stop text that ended the answer, None if it was an end token or something else.
    blamed: of an "error" that is the request's own fault, its message among it.
    """

    reason: Reason
    message: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    timings: Timings
    stop: str | None = None
    blamed: InvalidRequest | None = None


Event = Delta | Finished


@dataclass(frozen=True)
class Result:
    """A whole answer: all deltas joined, and how it ended."""

    text: str
    tokens: list[TokenInfo]
    finished: Finished
    prompt: list[TokenInfo] = field(default_factory=list)
