"""The request of /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from kt.server.schemas import MAX_TOKENS, Generation, StrictModel

MAX_MESSAGES = 4096
MAX_TEMPLATE_CHARACTERS = 16384
MAX_TEMPLATE_DEPTH = 8
# What kt itself hands to the template.
RESERVED = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
)


def _plain_text(value: Any) -> Any:
    """A string, or the text parts of a list joined by newlines."""
    if not isinstance(value, list):
        return value
    return "\n".join(_part_text(index, part) for index, part in enumerate(value))


def _part_text(index: int, part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise ValueError(f"part {index} must be an object with a type")
    if part["type"] != "text":
        raise ValueError(f"part {index} is {part['type'][:64]!r}; kt reads text parts only")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"part {index} has no text")
    return str(part["text"])


Content = Annotated[
    str,
    BeforeValidator(_plain_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


class Message(StrictModel):
    """One turn. `developer` is OpenAI's newer word for `system`, which the template gets."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = Field(None, max_length=256)
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = None

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tool_calls": ([],),
        "function_call": (),
        "refusal": ("",),
        "audio": (),
        "annotations": ([],),
    }

    @model_validator(mode="after")
    def _content_is_given(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as templates expect it; an assistant's null content is the empty text."""
        message = self.model_dump(exclude_none=True)
        message["content"] = self.content or ""
        if self.role == "developer":
            message["role"] = "system"
        return message


class ChatRequest(Generation):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description="extra variables of the chat template"
    )

    harmless = Generation.harmless | {"parallel_tool_calls", "prompt_cache_retention"}
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "store": (False,),
    }

    @field_validator("chat_template_kwargs")
    @classmethod
    def _bounded(cls, value: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(value)) > MAX_TEMPLATE_CHARACTERS:
            raise ValueError(f"is longer than {MAX_TEMPLATE_CHARACTERS} characters of JSON")
        if _depth(value) > MAX_TEMPLATE_DEPTH:
            raise ValueError(f"is nested deeper than {MAX_TEMPLATE_DEPTH}")
        for name in value:
            if name in RESERVED or not name.isidentifier():
                raise ValueError(f"{name[:64]!r} cannot be set")
        return value

    @model_validator(mode="after")
    def _no_contradictions(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is only allowed when logprobs is true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def best_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def _depth(value: Any) -> int:
    """Levels of nesting; the JSON parser has already bounded it."""
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
