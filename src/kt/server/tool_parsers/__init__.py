"""The forms in which models write tool calls, one row each.

A call is told as soon as it is certain to be one, its arguments as they come. What is none is shown
as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kt.errors import UsageError
from kt.server.tool_parsers import json_calls, token_calls, xml_calls
from kt.server.tool_parsers.call import Call, CallEnd, CallPiece, CallStart, CallText, Tools
from kt.server.tool_parsers.reader import CallReader

__all__ = [
    "TOOL_FORMS",
    "Call",
    "CallEnd",
    "CallPiece",
    "CallReader",
    "CallStart",
    "CallText",
    "ToolForm",
    "Tools",
    "tool_form",
]


@dataclass(frozen=True)
class ToolForm:
    """signs: texts by one of which, and by `also`, a chat template is known to teach this form; the
    first row wins.

    opening, closing: the marks around what a `reader` reads; dropped: marks around those that mean
    nothing by themselves; bare: reads an answer that is a call without marks.

    The rest is what a grammar forces: `first`, calls with `joint` between them, `last`; a call is
    `before` (%s: its name, %i: its number), arguments, `after`; arguments: "json", or how one is
    written (%s: its name, |: its value).
    """

    name: str
    signs: tuple[str, ...]
    opening: str
    closing: str
    reader: Callable[[Tools], CallReader]
    before: str
    after: str
    dropped: tuple[str, ...] = ()
    bare: Callable[[Tools], CallReader] | None = None
    first: str = ""
    last: str = ""
    joint: str = "\n"
    arguments: str = "json"
    also: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that must reach the parser even where they are special tokens."""
        inner = (token_calls.DEEPSEEK_SEPARATOR, token_calls.KIMI_SEPARATOR)
        used = [mark for mark in inner if mark in self.before]
        return tuple(filter(None, (self.opening, self.closing, *self.dropped, *used)))

    def written(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Calls, (name, arguments) each, as the model writes them."""
        return self.first + self.joint.join(map(self._one, calls, count())) + self.last

    def _one(self, call: tuple[str, Any], number: int) -> str:
        name, arguments = call
        text = self.before.replace("%s", name).replace("%i", str(number))
        if self.arguments == "json" or not isinstance(arguments, dict):
            return text + _as_text(arguments) + self.after
        for key, value in arguments.items():
            text += self.arguments.replace("%s", key).replace("|", _as_text(value))
        return text + self.after


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Harmony (gpt-oss) is no row here: its channels carry all of an answer; see server/harmony.py.
TOOL_FORMS: Final = (
    ToolForm(
        name="kimi_k2",
        signs=("<|tool_calls_section_begin|>", "tool_declare<|im_middle|>"),
        opening="<|tool_call_begin|>",
        closing="<|tool_call_end|>",
        dropped=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        reader=token_calls.KimiCalls,
        first="<|tool_calls_section_begin|>",
        before="<|tool_call_begin|>functions.%s:%i<|tool_call_argument_begin|>",
        after="<|tool_call_end|>",
        last="<|tool_calls_section_end|>",
        joint="",
    ),
    ToolForm(
        name="minimax_m2",
        signs=("<minimax:tool_call>",),
        opening="<minimax:tool_call>",
        closing="</minimax:tool_call>",
        reader=xml_calls.InvokeCalls,
        first="<minimax:tool_call>\n",
        before='<invoke name="%s">\n',
        arguments='<parameter name="%s">|</parameter>\n',
        after="</invoke>\n",
        last="</minimax:tool_call>",
        joint="",
    ),
    ToolForm(
        name="deepseek_v3",
        signs=("<｜tool▁calls▁begin｜>",),
        also="```json",
        opening="<｜tool▁call▁begin｜>",
        closing="<｜tool▁call▁end｜>",
        dropped=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        reader=token_calls.DeepseekCalls,
        first="<｜tool▁calls▁begin｜>",
        before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n",
        after="\n```<｜tool▁call▁end｜>",
        last="<｜tool▁calls▁end｜>",
    ),
    ToolForm(
        name="deepseek_v31",
        signs=("<｜tool▁calls▁begin｜>",),
        opening="<｜tool▁call▁begin｜>",
        closing="<｜tool▁call▁end｜>",
        dropped=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        reader=token_calls.DeepseekCalls,
        first="<｜tool▁calls▁begin｜>",
        before="<｜tool▁call▁begin｜>%s<｜tool▁sep｜>",
        after="<｜tool▁call▁end｜>",
        last="<｜tool▁calls▁end｜>",
        joint="",
    ),
    ToolForm(
        name="glm45",
        signs=("<arg_key>",),
        opening="<tool_call>",
        closing="</tool_call>",
        reader=xml_calls.PairCalls,
        before="<tool_call>%s\n",
        arguments="<arg_key>%s</arg_key>\n<arg_value>|</arg_value>\n",
        after="</tool_call>",
    ),
    ToolForm(
        name="qwen3_coder",
        signs=("<function=",),
        opening="<tool_call>",
        closing="</tool_call>",
        reader=xml_calls.FunctionCalls,
        before="<tool_call>\n<function=%s>\n",
        arguments="<parameter=%s>\n|\n</parameter>\n",
        after="</function>\n</tool_call>",
    ),
    ToolForm(
        name="llama3",
        signs=("<|python_tag|>", '"parameters": dictionary of argument name'),
        opening="<|python_tag|>",
        closing="",
        reader=json_calls.JsonCalls,
        bare=json_calls.BareJsonCalls,
        before='{"name": "%s", "parameters": ',
        after="}",
        joint="; ",
    ),
    ToolForm(
        name="hermes",
        signs=("<tool_call>",),
        opening="<tool_call>",
        closing="</tool_call>",
        reader=json_calls.JsonCalls,
        before='<tool_call>\n{"name": "%s", "arguments": ',
        after="}\n</tool_call>",
    ),
)


def tool_form(template: str, override: str | None = None) -> ToolForm | None:
    """The form that `template` teaches, or the one called `override`; None: it teaches none.

    Raises UsageError for an override that does not exist.
    """
    if override is not None:
        for form in TOOL_FORMS:
            if form.name == override:
                return form
        names = ", ".join(form.name for form in TOOL_FORMS)
        raise UsageError(f"there is no tool form {override!r}; there are {names}, harmony")
    for form in TOOL_FORMS:
        if any(sign in template for sign in form.signs) and form.also in template:
            return form
    return None
