"""The search for the part of a schema that is to blame."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kt.engine import schema_blame
from kt.engine.grammar_errors import reason

BAD = {"type": "strin"}


def fails(schema: Any) -> bool:
    """As a compiler would: whether a bad type is anywhere in it."""
    return "strin'" in repr(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {}, "b": {"items": BAD}}}, ".properties.b.items"),
        ({"prefixItems": [{}, BAD]}, ".prefixItems[1]"),
        ({"additionalProperties": BAD}, ".additionalProperties"),
        ({"patternProperties": {"^a-": BAD}}, ".patternProperties['^a-']"),
        ({"allOf": [{"oneOf": [{"anyOf": [BAD]}]}]}, ".allOf[0].oneOf[0].anyOf[0]"),
        ({"$ref": "#/$defs/no", "properties": {"a": BAD}}, ".properties.a"),
        (BAD, ""),
        ([BAD], ""),
        ("strin'", ""),
    ],
    ids=str,
)
def test_the_innermost_part(schema, place):
    assert schema_blame.place(schema, fails) == place


def test_slow_parts_are_given_up(monkeypatch):
    monkeypatch.setattr(schema_blame, "SECONDS", 0.05)
    tried = []

    def slow(schema: Any) -> bool:
        tried.append(schema)
        time.sleep(0.03)
        return schema == {"properties": {str(i): {} for i in range(100)}}

    inner = {"properties": {str(i): {} for i in range(100)}}
    assert schema_blame.place({"items": inner}, slow) == ".items"
    assert 1 <= len(tried) <= 3


def test_advice_that_no_client_can_follow_is_left_out() -> None:
    said = (
        "lexer precomputation failed; either increase limits.initial_lexer_fuel or disable "
        "limits.precompute_large_lexemes"
    )
    assert reason(said) == "lexer precomputation failed"
