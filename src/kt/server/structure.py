"""The form that a request wants an answer in, as the engine's grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from kt.engine.request import Grammar
from kt.server.faults import Fault, missing, wrong_value
from kt.server.grammars import JSON_STYLE
from kt.server.schemas import StrictModel
from kt.server.tool_schemas import JsonSchema

MAX_GRAMMAR = 1 << 18
"""Characters of a regular expression or grammar."""


class NamedSchema(StrictModel):
    name: str = Field("answer", max_length=256)
    description: str | None = None
    schema_: JsonSchema | None = Field(None, alias="schema")
    strict: bool = True

    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("type", "properties", "required"), "the schema itself belongs into 'schema'"
    )


class ResponseFormat(StrictModel):
    """json_schema is always enforced, whatever `strict` says."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    elsewhere: ClassVar[Mapping[str, str]] = {"schema": "it belongs into 'json_schema'"}

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise self._fault()
        if self.json_schema is not None and self.json_schema.schema_ is None:
            raise missing("json_schema", "schema")
        return self

    def _fault(self) -> Fault:
        if self.json_schema is None:
            return missing("json_schema")
        return wrong_value("it goes with the type 'json_schema' only", "json_schema")


class Structured(StrictModel):
    """Extensions that other open servers also have; at most one of them."""

    # What a client calls the schema of `response_format`.
    schema_field: ClassVar[str] = "response_format.json_schema.schema"

    guided_json: JsonSchema | str | None = Field(None, description="a JSON schema, or its text")
    guided_regex: str | None = Field(None, min_length=1, max_length=MAX_GRAMMAR)
    guided_grammar: str | None = Field(
        None, min_length=1, max_length=MAX_GRAMMAR, description="Lark (llguidance) or GBNF"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Structured:
        names = ("guided_json", "guided_regex", "guided_grammar")
        given = [name for name in names if getattr(self, name) is not None]
        format_ = getattr(self, "response_format", None)
        if format_ is not None and format_.type != "text":
            given.insert(0, "response_format")
        if len(given) > 1:
            raise wrong_value(f"it cannot go with {given[0]}; give one of them", given[1])
        self._guided_schema()
        return self

    def answer_schema(self, format_: ResponseFormat | None = None) -> dict[str, Any] | None:
        """The JSON schema that the answer must meet, None if there is none."""
        if self.guided_json is not None:
            return self._guided_schema()
        if format_ is None or format_.type == "text":
            return None
        schema = format_.json_schema.schema_ if format_.json_schema else None
        return schema or {"type": "object"}

    def grammar(self, format_: ResponseFormat | None = None) -> Grammar | None:
        """What the engine enforces. Raises ValueError for a guided_json that is no schema."""
        if self.guided_regex is not None:
            return Grammar("regex", self.guided_regex, "guided_regex")
        if self.guided_grammar is not None:
            kind: Literal["gbnf", "lark"] = "gbnf" if "::=" in self.guided_grammar else "lark"
            return Grammar(kind, self.guided_grammar, "guided_grammar")
        schema = self.answer_schema(format_)
        if schema is None:
            return None
        text = json.dumps({"x-guidance": JSON_STYLE, **schema})
        guided = self.guided_json is not None
        return Grammar("json_schema", text, "guided_json" if guided else self.schema_field)

    def _guided_schema(self) -> dict[str, Any]:
        if not isinstance(self.guided_json, str):
            return self.guided_json or {}
        try:
            schema = json.loads(self.guided_json)
        except (ValueError, RecursionError):
            schema = None
        if not isinstance(schema, dict):
            raise wrong_value("it is not a JSON schema", "guided_json")
        return schema
