"""The request of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kt.server.faults import Fault, wrong_type, wrong_value
from kt.server.schemas import MAX_TOKENS, Generation
from kt.server.structure import Structured

MAX_PROMPTS = 64
MAX_ANSWERS = 256


_PROMPTS = "a string, an array of token ids, or an array of such prompts"


def _is_ids(value: Any) -> bool:
    return bool(value) and all(type(item) is int and 0 <= item < 1 << 31 for item in value)


def _prompt_list(value: Any) -> Any:
    """OpenAI's four forms (text, texts, ids, lists of ids) as a tuple of texts and id tuples."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise _no_prompt(value)
    if _is_ids(value):
        return (tuple(value),)
    if all(type(item) is int for item in value):
        raise wrong_value("a token id is a number from 0 to 2^31 - 1")
    if len(value) > MAX_PROMPTS:
        raise wrong_value(f"expected at most {MAX_PROMPTS} prompts, got {len(value)}")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and _is_ids(item) for item in value):
        return tuple(map(tuple, value))
    for i, item in enumerate(value):
        if isinstance(item, list) and not _is_ids(item):
            raise wrong_value("expected token ids, which are numbers from 0 to 2^31 - 1", i)
        if not isinstance(item, str | int | list) or isinstance(item, bool):
            raise wrong_type("a string or an array of token ids", item, i)
    raise wrong_value(f"expected {_PROMPTS}, not a mixture")


def _no_prompt(value: Any) -> Fault:
    if value == []:
        return wrong_value("it must not be empty")
    return wrong_type(_PROMPTS, value)


_ids_schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
Prompts = Annotated[
    tuple[str | tuple[int, ...], ...],
    BeforeValidator(_prompt_list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {**_ids_schema, "minItems": 1},
                {"type": "array", "items": _ids_schema, "minItems": 1},
            ]
        }
    ),
]


class CompletionRequest(Generation, Structured):
    """echo: the prompt precedes the answer; then max_tokens may be 0."""

    prompt: Prompts
    max_tokens: int | None = Field(16, ge=0, le=MAX_TOKENS)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "best_of": (1,),
        "suffix": ("",),
    }
    elsewhere: ClassVar[Mapping[str, str]] = {
        "messages": "/v1/chat/completions takes messages",
        "max_completion_tokens": "it is 'max_tokens' here",
        "response_format": "it is 'guided_json' here",
    }

    @model_validator(mode="after")
    def _bounded_choices(self) -> CompletionRequest:
        if len(self.prompt) * self.n > MAX_ANSWERS:
            why = f"{len(self.prompt)} prompts times {self.n} are more than {MAX_ANSWERS} answers"
            raise wrong_value(why, "n")
        if self.max_tokens == 0 and not self.echo:
            raise wrong_value(
                "expected at least 1, got 0, which is only allowed with echo", "max_tokens"
            )
        return self

    def best_logprobs(self) -> int | None:
        return self.logprobs

    def prompt_logprobs(self) -> int | None:
        if not self.echo:
            return None
        return 0 if self.max_tokens == 0 and self.logprobs is None else self.logprobs
