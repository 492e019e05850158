"""The request of /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from kt.server.faults import missing, shown, wrong_value
from kt.server.schemas import MAX_TOKENS, Generation, StrictModel
from kt.server.structure import ResponseFormat, Structured
from kt.server.tool_schemas import MAX_TOOLS, AnyToolChoice, Tool, ToolCall, ToolChoice, depth
from kt.server.translate import text_of

MAX_MESSAGES = 4096
MAX_TEMPLATE_CHARACTERS = 16384
MAX_TEMPLATE_DEPTH = 8
# What kt itself hands to the template.
RESERVED = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "limit", "bos_token", "eos_token"}
)


def _plain_text(value: Any) -> str:
    """A string, or the text parts of a list joined by newlines."""
    return text_of(value, ("text",))


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
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_TOOLS)

    harmless = frozenset({"parsed"})
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "function_call": (),
        "refusal": ("",),
        "audio": (),
        "annotations": ([],),
    }

    @model_validator(mode="after")
    def _content_is_given(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise missing("content")
        if self.tool_calls and self.role != "assistant":
            raise wrong_value(f"a {self.role} message cannot call tools", "tool_calls")
        return self

    def for_template(self, *, parsed: bool = True) -> dict[str, Any]:
        """The message as templates expect it; an assistant's null content is the empty text.

        parsed: arguments of tool calls as objects, which most templates expect; else as JSON text.
        """
        message = self.model_dump(exclude_none=True, exclude={"tool_calls"})
        message["content"] = self.content or ""
        if self.role == "developer":
            message["role"] = "system"
        if self.tool_calls:
            message["tool_calls"] = [call.for_template(parsed=parsed) for call in self.tool_calls]
        return message


class ChatRequest(Generation, Structured):
    # What a client calls the conversation, and the schema of tool number {}.
    messages_field: ClassVar[str] = "messages"
    parameters_field: ClassVar[str] = "tools[{}].function.parameters"

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] = Field([], max_length=MAX_TOOLS)
    tool_choice: AnyToolChoice = ToolChoice(type="auto")
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description="extra variables of the chat template"
    )

    harmless = Generation.harmless | {"prompt_cache_retention"}
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": (),
        "web_search_options": (),
        "store": (False,),
    }
    elsewhere: ClassVar[Mapping[str, str]] = {
        "prompt": "'messages' has the conversation; /v1/completions takes a prompt",
        "input": "'messages' has the conversation; /v1/responses takes an input",
        "system": "a message of the role 'system' says it",
    }

    @field_validator("chat_template_kwargs")
    @classmethod
    def _bounded(cls, value: dict[str, Any]) -> dict[str, Any]:
        if depth(value) > MAX_TEMPLATE_DEPTH:
            raise wrong_value(f"it is nested deeper than {MAX_TEMPLATE_DEPTH} levels")
        if len(json.dumps(value)) > MAX_TEMPLATE_CHARACTERS:
            raise wrong_value(f"it is longer than {MAX_TEMPLATE_CHARACTERS} characters of JSON")
        for name in value:
            if name in RESERVED or not name.isidentifier():
                raise wrong_value(f"{shown(name)} cannot be set")
        return value

    @model_validator(mode="after")
    def _no_contradictions(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong_value("it is only allowed when logprobs is true", "top_logprobs")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise wrong_value(
                "it differs from max_completion_tokens; give one of them", "max_tokens"
            )
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools]
        for i, name in enumerate(names):
            if name in names[:i]:
                why = f"another tool has the name {name!r}, too"
                raise wrong_value(why, "tools", i, "function", "name")
        wanted = self.tool_choice.function
        if self.tool_choice.type == "required" and not names:
            raise wrong_value("a forced call needs tools", "tool_choice")
        if wanted is not None and wanted.name not in names:
            why = f"{shown(wanted.name)} is not among the tools"
            raise wrong_value(why, "tool_choice", "function", "name")
        if self.callable_tools() and self.grammar(self.response_format) is not None:
            if self.tool_choice.type != "auto":
                raise wrong_value("a forced call cannot have a response format, too", "tool_choice")
            if self.answer_schema(self.response_format) is None:
                name = "guided_grammar" if self.guided_regex is None else "guided_regex"
                raise wrong_value("it does not go with tools", name)

    def callable_tools(self) -> list[Tool]:
        """The tools that this answer may call."""
        if self.tool_choice.type == "none":
            return []
        if self.tool_choice.function is not None:
            name = self.tool_choice.function.name
            return [tool for tool in self.tools if tool.function.name == name]
        return self.tools

    def template_variables(self) -> dict[str, Any]:
        """What the template is told besides messages and tools."""
        effort = self.reasoning_effort
        said: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if effort == "none":
            said = {"enable_thinking": False, "thinking": False}
        return {**said, **self.chat_template_kwargs}

    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def best_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
