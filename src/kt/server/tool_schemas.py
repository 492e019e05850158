"""Tools in a chat request: definitions, the choice among them, calls in earlier messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from kt.server.faults import missing, shown, wrong_type, wrong_value
from kt.server.schemas import StrictModel
from kt.server.tool_parsers.call import types_of

MAX_TOOLS = 512
MAX_DEPTH = 64
NAME = r"^[A-Za-z0-9_.\-]{1,128}$"


def depth(value: Any) -> int:
    """Levels of nesting. Level by level: a request can nest deeper than functions may."""
    levels, level = 0, [value]
    while any(isinstance(item, (dict, list)) for item in level):
        parts = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, (dict, list))
        ]
        level = [item for part in parts for item in part]
        levels += 1
    return levels


def _schema(value: Any) -> Any:
    if isinstance(value, dict) and depth(value) > MAX_DEPTH:
        raise wrong_value(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


JsonSchema = Annotated[dict[str, Any], BeforeValidator(_schema)]


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    types = types_of(schema)
    if types and "object" not in types:
        words = ", ".join(sorted(types))[:64]
        raise wrong_value(f"expected the schema of an object, not of {words}")
    return schema


ArgumentSchema = Annotated[JsonSchema, AfterValidator(_arguments)]


class Function(StrictModel):
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: ArgumentSchema = Field({}, description="JSON schema of the arguments")
    strict: bool = False


class Tool(StrictModel):
    type: Literal["function"]
    function: Function

    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("name", "description", "parameters", "strict"), "it belongs into 'function'"
    )

    def for_template(self) -> dict[str, Any]:
        """As templates expect it."""
        function = self.function
        shown: dict[str, Any] = {"name": function.name}
        if function.description is not None:
            shown["description"] = function.description
        shown["parameters"] = function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": shown}


class NamedFunction(StrictModel):
    name: str = Field(pattern=NAME)


class ToolChoice(StrictModel):
    """none, auto, required, or (type "function") the one that must be called."""

    type: Literal["none", "auto", "required", "function"]
    function: NamedFunction | None = None

    elsewhere: ClassVar[Mapping[str, str]] = {"name": "it belongs into 'function'"}

    @model_validator(mode="after")
    def _named(self) -> ToolChoice:
        if (self.type == "function") != (self.function is not None):
            if self.function is None:
                raise missing("function")
            raise wrong_value("it goes with the type 'function' only", "function")
        return self


_CHOICES = "'none', 'auto', 'required' or an object that names a function"


def _choice(value: Any) -> Any:
    """OpenAI's two forms: a word, or an object."""
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise wrong_value(f"expected {_CHOICES}, got {shown(value)}")
        return {"type": value}
    if not isinstance(value, dict | ToolChoice):
        raise wrong_type("a string or an object", value)
    return value


AnyToolChoice = Annotated[
    ToolChoice,
    BeforeValidator(_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                        },
                    },
                    "required": ["type", "function"],
                },
            ]
        }
    ),
]


class CalledFunction(StrictModel):
    name: str = Field(min_length=1, max_length=256)
    arguments: str = "{}"


class ToolCall(StrictModel):
    id: str = Field("", max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    harmless = frozenset({"index"})

    def for_template(self, *, parsed: bool) -> dict[str, Any]:
        """parsed: the arguments as an object, where they are one."""
        arguments: Any = self.function.arguments
        if parsed:
            try:
                value = json.loads(arguments or "{}", strict=False)
            except (ValueError, RecursionError):
                value = None
            arguments = value if isinstance(value, dict) else arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}
