"""Calls written as JSON: Hermes and Qwen, Llama 3."""

from __future__ import annotations

from kt.server.tool_parsers.call import Call, Malformed, Tools, from_json, json_values


def parse(body: str, tools: Tools) -> list[Call]:
    """{"name": ..., "arguments": {...}}, several in a list or one after the other."""
    calls: list[Call] = []
    for value in json_values(body):
        calls += map(from_json, value if isinstance(value, list) else [value])
    if not calls:
        raise Malformed("no call")
    return calls


def parse_bare(body: str, tools: Tools) -> list[Call]:
    """As `parse`, but the text has no marks: only objects that are clearly calls count."""
    for value in json_values(body):
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, dict) or not {"parameters", "arguments"} & set(item):
                raise Malformed("not a call")
    return parse(body, tools)
