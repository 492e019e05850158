"""What /v1/completions and /v1/chat/completions have in common: names, bounds and refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from kt.engine.request import Sampling
from kt.server.faults import shown, unknown, unsupported, wrong_type, wrong_value
from kt.server.sampling_defaults import SamplingDefaults

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 512
MAX_CHOICES = 16
MAX_TOKENS = 1 << 24
MAX_BIASES = 1024

_NO_DEFAULTS = SamplingDefaults()

UNSUPPORTED = "it cannot be done here; leave it out"


def _stop_list(value: Any) -> Any:
    """A stop string or a list of them as a tuple."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise wrong_type("a string or an array of strings", value)
    if len(stops) > MAX_STOPS:
        raise wrong_value(f"expected at most {MAX_STOPS} strings, got {len(stops)}")
    for i, stop in enumerate(stops):
        place = () if stops is not value else (i,)
        if not isinstance(stop, str):
            raise wrong_type("a string", stop, *place)
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            why = f"expected 1 to {MAX_STOP_CHARACTERS} characters, got {len(stop)}"
            raise wrong_value(why, *place)
    return tuple(stops)


def _bias_map(value: Any) -> Any:
    """JSON's {"123": -100} as {123: -100.0}."""
    if not isinstance(value, dict):
        raise wrong_type("an object", value)
    if len(value) > MAX_BIASES:
        raise wrong_value(f"expected at most {MAX_BIASES} token ids, got {len(value)}")
    for key, bias in value.items():
        if not re.fullmatch(r"[0-9]{1,9}", key):
            raise wrong_value(f"expected token ids as its names, got {shown(key)}")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise wrong_type("a number", bias, key)
        if not -100 <= bias <= 100:
            raise wrong_value(f"expected a number from -100 to 100, got {shown(bias)}", key)
    return {int(key): float(bias) for key, bias in value.items()}


ModelName = Annotated[
    str | None,
    Field(min_length=1, max_length=1024, description="one of the served model's names, or absent"),
]
"""None: whatever is served."""
Stop = Annotated[
    tuple[str, ...],
    BeforeValidator(_stop_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(_bias_map),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]


class StrictModel(BaseModel):
    """A JSON object whose every field is known; an unknown one is refused with similar names.

    `harmless` fields change nothing in an answer and are dropped. `unsupported` fields are
    OpenAI's but not kt's; they are refused unless they have one of the listed values, which ask
    for nothing. `elsewhere` says of others how the same is asked for. null means absent.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
    harmless: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name, value in data.items():
            if name in known:
                kept[name] = value
            elif name in cls.unsupported:
                if value is not None and value not in cls.unsupported[name]:
                    raise unsupported(UNSUPPORTED, name)
            elif name not in cls.harmless:
                raise unknown(name, known, cls.elsewhere.get(name, ""))
        return {name: value for name, value in kept.items() if value is not None}


class StreamOptions(StrictModel):
    include_usage: bool = False
    harmless = frozenset({"include_obfuscation"})


class Generation(StrictModel):
    """The fields that say how to generate. The ranges are OpenAI's, as far as it has them."""

    model: ModelName = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: LogitBias = Field({})
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    stop: Stop = ()
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    # Extensions that other open servers also have.
    top_k: int | None = Field(None, ge=-1, le=1 << 20, description="0 or -1: all tokens")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0, le=MAX_TOKENS)

    harmless = frozenset(
        {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
    )

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise wrong_value("it is only allowed when stream is true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def token_limit(self) -> int | None:
        return self.max_tokens

    def best_logprobs(self) -> int | None:
        """How many best tokens to report at each position; None: no log-probabilities at all."""
        return None

    def prompt_logprobs(self) -> int | None:
        """The same for the prompt's tokens."""
        return None

    def sampling(self, choice: int = 0, defaults: SamplingDefaults = _NO_DEFAULTS) -> Sampling:
        """The engine's parameters of the `choice`-th answer; later choices get later seeds.

        defaults: the model's, for what the request leaves open.
        """
        seed = None if self.seed is None else (self.seed + choice) % (1 << 64)

        def chosen(name: str, otherwise: float) -> float:
            own, model = getattr(self, name), getattr(defaults, name)
            return own if own is not None else model if model is not None else otherwise

        return Sampling(
            max_tokens=self.token_limit(),
            temperature=chosen("temperature", 1.0),
            top_k=max(int(chosen("top_k", 0)), 0),
            top_p=chosen("top_p", 1.0),
            min_p=chosen("min_p", 0.0),
            repetition_penalty=chosen("repetition_penalty", 1.0),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=seed,
            stop=self.stop,
            logprobs=self.best_logprobs(),
            prompt_logprobs=self.prompt_logprobs(),
            logit_bias=self.logit_bias,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
        )
