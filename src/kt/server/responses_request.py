"""The request of /v1/responses, and the chat request that means the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from kt.server.chat_request import MAX_MESSAGES, ChatRequest
from kt.server.errors import ApiError
from kt.server.schemas import MAX_TOKENS, StrictModel
from kt.server.structure import NamedSchema
from kt.server.tool_schemas import MAX_TOOLS, Function
from kt.server.translate import text_of, validated

TEXT_PARTS = ("input_text", "output_text", "text")


class _Chat(ChatRequest):
    """With this API's names of its schemas."""

    schema_field = "text.format.schema"
    parameters_field = "tools[{}].parameters"


class FlatTool(Function):
    """A function; unlike in a chat request its fields are the tool's own."""

    type: Literal["function"]


class TextFormat(NamedSchema):
    type: Literal["text", "json_object", "json_schema"] = "text"


class TextOptions(StrictModel):
    format: TextFormat | None = None
    harmless = frozenset({"verbosity"})


class Reasoning(StrictModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    harmless = frozenset({"summary", "generate_summary"})


class ResponsesRequest(StrictModel):
    """Stateless: nothing is kept, so the input is the whole conversation."""

    model: str = Field(min_length=1, max_length=1024)
    input: str | list[dict[str, Any]] = Field(max_length=8 << 20)
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    tools: list[FlatTool] = Field([], max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    stream: bool = False
    metadata: dict[str, Any] = Field({})
    # Extensions, as in a chat request.
    top_k: int | None = Field(None, ge=-1, le=1 << 20)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    chat_template_kwargs: dict[str, Any] = Field({})

    harmless = frozenset(
        {
            "user",
            "store",  # the answer says that nothing was stored
            "include",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "prompt_cache_options",
            "stream_options",
        }
    )
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "max_tool_calls": (),
        "context_management": (),
        "moderation": (),
    }

    @model_validator(mode="after")
    def _some_input(self) -> ResponsesRequest:
        if not self.input:
            raise ValueError("input is empty")
        if isinstance(self.input, list) and len(self.input) > MAX_MESSAGES:
            raise ValueError(f"input has more than {MAX_MESSAGES} items")
        return self

    def chat(self) -> ChatRequest:
        """Raises ApiError."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": list(self._messages()),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude={"type"})}
                for tool in self.tools
            ],
            "tool_choice": self._tool_choice(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self._format(),
            "reasoning_effort": self.reasoning.effort,
            "stream": self.stream,
        }
        for name in ("temperature", "top_p", "top_k", "min_p", "seed", "chat_template_kwargs"):
            fields[name] = getattr(self, name)
        return validated(_Chat, fields)

    def _tool_choice(self) -> Any:
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        return choice

    def _format(self) -> dict[str, Any] | None:
        wanted = self.text.format
        if wanted is None or wanted.type != "json_schema":
            return None if wanted is None else {"type": wanted.type}
        schema = {"name": wanted.name, "schema": wanted.schema_}
        return {"type": "json_schema", "json_schema": schema}

    def _messages(self) -> Iterator[dict[str, Any]]:
        if self.instructions:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        said: dict[str, Any] = {}  # the assistant's turn; several items make one
        for index, item in enumerate(self.input):
            where = f"input[{index}]"
            if _is_assistant(item):
                _add_said(said, item, where)
                continue
            if said:
                yield said
                said = {}
            yield _heard(item, where)
        if said:
            yield said


def _is_assistant(item: dict[str, Any]) -> bool:
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _add_said(said: dict[str, Any], item: dict[str, Any], where: str) -> None:
    said.setdefault("role", "assistant")
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        call = {"id": item.get("call_id", ""), "type": "function", "function": function}
        said.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        text = text_of(parts, ("reasoning_text", "summary_text"), where)
        said["reasoning_content"] = said.get("reasoning_content", "") + text
    else:
        text = text_of(item.get("content"), TEXT_PARTS, f"{where}.content")
        said["content"] = said.get("content", "") + text


def _heard(item: dict[str, Any], where: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call_output":
        text = text_of(item.get("output"), TEXT_PARTS, f"{where}.output")
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
    if kind != "message":
        message = f"{where}: kt does not support items of type {str(kind)[:64]!r}"
        raise ApiError(400, message, param=f"{where}.type", code="unsupported_field")
    text = text_of(item.get("content"), TEXT_PARTS, f"{where}.content")
    return {"role": item.get("role"), "content": text}
