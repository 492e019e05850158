"""The request of /v1/messages (Anthropic's form), and the chat request that means the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from kt.server.chat_request import MAX_MESSAGES, ChatRequest
from kt.server.faults import Path, missing, unsupported_part
from kt.server.schemas import MAX_STOP_CHARACTERS, MAX_STOPS, MAX_TOKENS, ModelName, StrictModel
from kt.server.tool_schemas import MAX_TOOLS, NAME, ArgumentSchema, JsonSchema
from kt.server.translate import name_field, sent_places, text_field, text_of, validated

StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class Turn(StrictModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class MessagesTool(StrictModel):
    type: Literal["custom"] = "custom"  # first, so that another type is what is told
    name: str = Field(pattern=NAME)
    description: str | None = None
    input_schema: ArgumentSchema
    harmless = frozenset(
        {"cache_control", "strict", "input_examples", "eager_input_streaming", "allowed_callers"}
    )

    elsewhere: ClassVar[Mapping[str, str]] = {
        "function": "its fields belong into the tool itself here",
        "parameters": "it is 'input_schema' here",
    }


class MessagesToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _has_name(self) -> MessagesToolChoice:
        if self.type == "tool" and self.name is None:
            raise missing("name")
        return self


class Thinking(StrictModel):
    type: Literal["enabled", "disabled", "adaptive"]
    harmless = frozenset({"budget_tokens", "display"})


class OutputFormat(StrictModel):
    type: Literal["json_schema"]
    schema_: JsonSchema = Field(alias="schema")


class OutputConfig(StrictModel):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    harmless = frozenset({"task_budget"})


_SENT: Final[dict[Path, Path]] = {
    ("reasoning_effort",): ("output_config", "effort"),
    ("response_format",): ("output_config", "format"),
    ("response_format", "json_schema"): ("output_config", "format"),
    ("stop",): ("stop_sequences",),
    ("tool_choice", "function"): ("tool_choice",),
}
"""Places in a chat request -> those in this one, where they differ."""


class _Chat(ChatRequest):
    """With this API's names of its schemas."""

    schema_field = "output_config.format.schema"
    parameters_field = "tools[{}].input_schema"


class CountRequest(StrictModel):
    """What /v1/messages/count_tokens takes."""

    model: ModelName = None
    messages: list[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: str | list[dict[str, Any]] | None = None
    tools: list[MessagesTool] = Field([], max_length=MAX_TOOLS)
    tool_choice: MessagesToolChoice = MessagesToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    harmless = frozenset(
        {
            "metadata",
            "service_tier",
            "cache_control",
            "context_management",
            "inference_geo",
            "diagnostics",
            "speed",
            "user_profile_id",
            "workspace_id",
            "betas",
        }
    )
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"container": (), "mcp_servers": ([],)}

    def chat(self) -> ChatRequest:
        """Raises Fault."""
        messages = list(self._messages())
        fields = {"messages": [message for _, message in messages], **self._fields()}
        sent = sent_places(_SENT, [place for place, _ in messages], len(self.tools))
        return validated(_Chat, fields, sent)

    def _fields(self) -> dict[str, Any]:
        choice = self.tool_choice
        return {
            "model": self.model,
            "tools": [_tool(tool) for tool in self.tools],
            "tool_choice": {"any": "required"}.get(choice.type, choice.type)
            if choice.type != "tool"
            else {"type": "function", "function": {"name": choice.name}},
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
            **self._thinking(),
            **self._config(),
        }

    def _thinking(self) -> dict[str, Any]:
        if self.thinking is None:
            return {}
        on = self.thinking.type != "disabled"
        return {"chat_template_kwargs": {"enable_thinking": on, "thinking": on}}

    def _config(self) -> dict[str, Any]:
        config = self.output_config or OutputConfig()
        effort = "xhigh" if config.effort == "max" else config.effort
        if config.format is None:
            return {"reasoning_effort": effort}
        schema = {"schema": config.format.schema_}
        form = {"type": config.format.type, "json_schema": schema}
        return {"reasoning_effort": effort, "response_format": form}

    def _messages(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Each with the place that it is from."""
        if self.system:
            text = text_of(self.system, ("text",), "system")
            yield ("system",), {"role": "system", "content": text}
        for index, turn in enumerate(self.messages):
            turn_place = ("messages", index)
            place = (*turn_place, "content")
            if isinstance(turn.content, str) or turn.role == "system":
                text = text_of(turn.content, ("text",), *place)
                yield turn_place, {"role": turn.role, "content": text}
            elif turn.role == "assistant":
                yield turn_place, _said(turn.content, place)
            else:
                for message in _heard(turn.content, place):
                    yield turn_place, message


class MessagesRequest(CountRequest):
    elsewhere: ClassVar[Mapping[str, str]] = {
        "stop": "it is 'stop_sequences' here",
        "response_format": "it is 'output_config.format' here",
    }
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1 << 20)
    stop_sequences: list[StopText] = Field([], max_length=MAX_STOPS)
    stream: bool = False

    def _fields(self) -> dict[str, Any]:
        own = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "stream": self.stream,
        }
        return {**super()._fields(), **own}


def _tool(tool: MessagesTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _said(blocks: list[dict[str, Any]], place: Path) -> dict[str, Any]:
    """An assistant's turn."""
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        kind, at = block.get("type"), (*place, index)
        if kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": name_field(block, "name", *at), "arguments": arguments}
            id_ = name_field(block, "id", *at)
            calls.append({"id": id_, "type": "function", "function": function})
        elif kind != "redacted_thinking":
            texts.append(_text(block, at, ("text", "thinking", "tool_use")))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _heard(blocks: list[dict[str, Any]], place: Path) -> Iterator[dict[str, Any]]:
    """A user's turn: results of tools, then what the user says."""
    texts = []
    for index, block in enumerate(blocks):
        at = (*place, index)
        if block.get("type") == "tool_result":
            content = text_of(block.get("content", ""), ("text",), *at, "content")
            answered = name_field(block, "tool_use_id", *at)
            yield {"role": "tool", "tool_call_id": answered, "content": content}
        else:
            texts.append(_text(block, at, ("text", "tool_result")))
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _text(block: dict[str, Any], place: Path, kinds: tuple[str, ...]) -> str:
    """kinds: what may be in this turn."""
    if block.get("type") != "text":
        raise unsupported_part(block, kinds, *place)
    return text_field(block, "text", *place)
