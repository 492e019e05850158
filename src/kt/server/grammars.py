"""Grammars that force an answer into a form: what `response_format`, `guided_*` and `tool_choice`
ask for.

Lark's form as llguidance reads it. A special token is written by its id, because its text alone
would be other tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kt.server.tool_parsers import ToolForm
from kt.server.tool_parsers.call import types_of

MAX_CALLS: Final = 32
"""Forced calls of one answer: a small model might never stop by itself."""

JSON_STYLE: Final = {"whitespace_pattern": "[ ]?"}
"""llguidance's options for JSON: on one line, the fewest tokens. Small models would fill
an answer with white space if they could.
"""


@dataclass(frozen=True)
class Signature:
    """A function that may be called. schema: of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclass
class Lark:
    """A grammar as it is written. special: text of special tokens -> id."""

    special: Mapping[str, int]
    rules: list[str] = field(default_factory=list)

    def literal(self, text: str) -> str:
        """`text` as a sequence of strings and special tokens."""
        if not self.special:
            return json.dumps(text, ensure_ascii=False)
        longest = sorted(self.special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, longest))})", text)
        return " ".join(
            f"<[{self.special[part]}]>"
            if part in self.special
            else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def rule(self, name: str, body: str) -> str:
        self.rules.append(f"{name}: {body}")
        return name

    def json(self, name: str, schema: Mapping[str, Any]) -> str:
        return self.rule(name, f"%json {schema_text(schema)}")

    def free_text(self, name: str, end: str) -> str:
        """Any text up to and with `end`."""
        if end in self.special:
            return self.rule(name, f"/(?s:.*)/ {self.literal(end)}")
        return self.rule(f"{name}[suffix={json.dumps(end, ensure_ascii=False)}]", "/(?s:.*)/")

    def text(self) -> str:
        return "\n".join(self.rules) + "\n"


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema inside a grammar, as llguidance reads it."""
    shown = {**schema, "x-guidance": {**JSON_STYLE, "lenient": True}}
    return json.dumps(shown, ensure_ascii=False)


def arguments(function: Signature) -> dict[str, Any]:
    """The schema of a call's arguments, which are an object whatever else it allows."""
    return {**function.schema, "type": "object"}


def calls(
    form: ToolForm | None,
    functions: Sequence[Signature],
    special: Mapping[str, int],
    *,
    parallel: bool,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """One call or more of `functions` in `form` (None: harmony); with `answer` also JSON of that
    schema instead.
    """
    lark = Lark(special)
    if form is None:
        _harmony(lark, functions, answer)
        return lark.text()
    choices = " | ".join(f"call_{i}" for i in range(len(functions)))
    joint = lark.literal(form.joint) if form.joint else ""
    more = f" ({joint} call){{0,{MAX_CALLS - 1}}}"
    parts = [lark.literal(form.first), f"call{more if parallel else ''}", lark.literal(form.last)]
    body = " ".join(part for part in parts if part and part != '""')
    lark.rule("start", "/[ \\n]{0,2}/ (calls | answer)" if answer else "/[ \\n]{0,2}/ calls")
    lark.rule("calls", body)
    lark.rule("call", choices)
    for i, function in enumerate(functions):
        _call(lark, form, i, function)
    if answer:
        lark.json("answer", answer)
    return lark.text()


def _call(lark: Lark, form: ToolForm, index: int, function: Signature) -> None:
    before, number, tail = form.before.partition("%i")
    parts = [lark.literal(before.replace("%s", function.name))]
    if number:
        parts += ["/[0-9]+/", lark.literal(tail)]
    if form.arguments == "json":
        parts.append(lark.json(f"args_{index}", arguments(function)))
    else:
        parts += _pairs(lark, form.arguments, index, function.schema)
    parts.append(lark.literal(form.after))
    lark.rule(f"call_{index}", " ".join(parts))


def _pairs(lark: Lark, pattern: str, index: int, schema: Mapping[str, Any]) -> list[str]:
    """Arguments one after the other, in the schema's order, each in `pattern`: %s is its name and |
    its value.
    """
    properties = schema.get("properties")
    required = schema.get("required")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    result = []
    for i, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        before, _, after = pattern.partition("|")
        name = f"arg_{index}_{i}"
        value = value if isinstance(value, dict) else {}
        parts = [lark.literal(before.replace("%s", key))]
        if types_of(value) <= {"string"} and "enum" not in value and "$ref" not in value:
            parts += _text(lark, f"text_{index}_{i}", after)
        else:
            inner = _words(lark, value) or lark.json(f"json_{index}_{i}", {**shared, **value})
            parts += [inner, lark.literal(after)]
        lark.rule(name, " ".join(parts))
        optional = not (isinstance(required, list) and key in required)
        result.append(f"{name}?" if optional else name)
    return result


def _text(lark: Lark, name: str, after: str) -> list[str]:
    """A bare value and what follows it; its first part ends the value."""
    mark = re.search(r"\n?</\w+>", after)
    end, rest = (mark[0], after[mark.end() :]) if mark else (after, "")
    if end.strip() in lark.special:
        return [f"/(?s:.*)/ {lark.literal(end.strip() + rest)}"]
    lark.free_text(name, end)
    return [name, lark.literal(rest)] if rest else [name]


def _words(lark: Lark, schema: Mapping[str, Any]) -> str:
    """The alternatives of an enumeration of texts, "" if it is something else."""
    options = schema.get("enum")
    if not isinstance(options, list) or not options or types_of(schema) != {"string"}:
        return ""
    return f"({' | '.join(lark.literal(str(option)) for option in options)})"


def _harmony(lark: Lark, functions: Sequence[Signature], answer: Mapping[str, Any] | None) -> None:
    ends = " | ".join([f"call_{i}" for i in range(len(functions))] + (["answer"] if answer else []))
    lark.rule("start", f"thought? ({ends})")
    thought = lark.literal("<|channel|>analysis<|message|>")
    lark.rule("thought", f"{thought} thinking {lark.literal('<|start|>assistant')}")
    lark.free_text("thinking", "<|end|>")
    for i, function in enumerate(functions):
        head = f"<|channel|>commentary to=functions.{function.name} <|constrain|>json<|message|>"
        said = lark.json(f"args_{i}", arguments(function))
        lark.rule(f"call_{i}", f"{lark.literal(head)} {said}")
    if answer:
        schema = lark.json("schema", answer)
        head, body = lark.literal("<|channel|>final"), lark.literal("<|message|>")
        kind = f'" "? {lark.literal("<|constrain|>json")}'
        lark.rule("answer", f"{head} ({kind})? {body} {schema}")
