"""The request of /v1/responses, and the chat request that means the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from kt.server.chat_request import MAX_MESSAGES, ChatRequest
from kt.server.faults import Path, missing, shown, unsupported, wrong_value
from kt.server.schemas import MAX_TOKENS, ModelName, StrictModel
from kt.server.structure import NamedSchema
from kt.server.tool_schemas import MAX_TOOLS, Function
from kt.server.translate import name_field, sent_places, text_field, text_of, validated

TEXT_PARTS = ("input_text", "output_text", "text")


_SENT: Final[dict[Path, Path]] = {
    ("max_completion_tokens",): ("max_output_tokens",),
    ("reasoning_effort",): ("reasoning", "effort"),
    ("response_format",): ("text", "format"),
    ("response_format", "json_schema"): ("text", "format"),
    ("tool_choice", "function"): ("tool_choice",),
}
"""Places in a chat request -> those in this one, where they differ."""


class _Chat(ChatRequest):
    """With this API's names of its schemas."""

    messages_field = "input"
    schema_field = "text.format.schema"
    parameters_field = "tools[{}].parameters"


class _Typed(StrictModel):
    type: Literal["function"]


class FlatTool(Function, _Typed):  # in this order a wrong type is the first thing that is told
    """A function; unlike in a chat request its fields are the tool's own."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "function": "its fields belong into the tool itself here"
    }


class TextFormat(NamedSchema):
    type: Literal["text", "json_object", "json_schema"] = "text"

    elsewhere: ClassVar[Mapping[str, str]] = {
        "json_schema": "its fields belong into 'format' itself here"
    }


class TextOptions(StrictModel):
    format: TextFormat | None = None
    harmless = frozenset({"verbosity"})


class Reasoning(StrictModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    harmless = frozenset({"summary", "generate_summary"})


class ResponsesRequest(StrictModel):
    """Stateless: nothing is kept, so the input is the whole conversation."""

    model: ModelName = None
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

    elsewhere: ClassVar[Mapping[str, str]] = {
        "messages": "it is 'input' here",
        "system": "it is 'instructions' here",
        "stop": "/v1/chat/completions takes it",
        "max_tokens": "it is 'max_output_tokens' here",
        "response_format": "it is 'text.format' here",
    }

    @model_validator(mode="after")
    def _some_input(self) -> ResponsesRequest:
        if not self.input:
            raise wrong_value("it must not be empty", "input")
        if isinstance(self.input, list) and len(self.input) > MAX_MESSAGES:
            why = f"expected at most {MAX_MESSAGES} items, got {len(self.input)}"
            raise wrong_value(why, "input")
        return self

    def chat(self) -> ChatRequest:
        """Raises Fault."""
        messages = list(self._messages())
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [message for _, message in messages],
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
        sent = sent_places(_SENT, [place for place, _ in messages], len(self.tools))
        return validated(_Chat, fields, sent)

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

    def _messages(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Each with the place that it is from."""
        if self.instructions:
            yield ("instructions",), {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield ("input",), {"role": "user", "content": self.input}
            return
        said: dict[str, Any] = {}  # the assistant's turn; several items make one
        first: Path = ()
        for index, item in enumerate(self.input):
            place = ("input", index)
            if _is_assistant(item):
                first = first if said else place
                _add_said(said, item, place)
                continue
            if said:
                yield first, said
                said = {}
            yield place, _heard(item, place)
        if said:
            yield first, said


def _is_assistant(item: dict[str, Any]) -> bool:
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _add_said(said: dict[str, Any], item: dict[str, Any], place: Path) -> None:
    said.setdefault("role", "assistant")
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {
            "name": name_field(item, "name", *place),
            "arguments": text_field(item, "arguments", *place, default="{}"),
        }
        id_ = name_field(item, "call_id", *place, default="")
        call = {"id": id_, "type": "function", "function": function}
        said.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        key = "content" if item.get("content") else "summary"
        text = text_of(item.get(key) or [], ("reasoning_text", "summary_text"), *place, key)
        said["reasoning_content"] = said.get("reasoning_content", "") + text
    else:
        text = text_of(item.get("content"), TEXT_PARTS, *place, "content")
        said["content"] = said.get("content", "") + text


def _heard(item: dict[str, Any], place: Path) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call_output":
        text = text_of(item.get("output"), TEXT_PARTS, *place, "output")
        answered = name_field(item, "call_id", *place, default="")
        return {"role": "tool", "tool_call_id": answered or None, "content": text}
    if kind != "message":
        raise unsupported(f"items of the type {shown(kind)} cannot be read", *place, "type")
    if item.get("role") is None:
        raise missing(*place, "role")
    text = text_of(item.get("content"), TEXT_PARTS, *place, "content")
    return {"role": item["role"], "content": text}
