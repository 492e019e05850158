"""How the served model words its answers: found in its chat template, unless told otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kt.server import harmony
from kt.server.output import MarkParser, OutputParser, PlainParser
from kt.server.reasoning import ReasoningForm, reasoning_form
from kt.server.tool_parsers import TOOL_FORMS, ToolForm, Tools, tool_form
from kt.units import Choice

_TOOLS: Final = re.compile(r"\btools\b")
_PLAIN: Final = TOOL_FORMS[-1]  # what a model is taught whose template teaches nothing


@dataclass(frozen=True)
class Profile:
    """tools: None for harmony. teaches, remembers: whether the template itself explains tools, and
    renders earlier calls.
    """

    tools: ToolForm | None
    reasoning: ReasoningForm | None
    teaches: bool
    remembers: bool
    reason: str

    @property
    def harmony(self) -> bool:
        return self.tools is None

    @property
    def thinks(self) -> bool:
        """Whether answers may hold thoughts."""
        return self.harmony or self.reasoning is not None

    @property
    def shown(self) -> tuple[str, ...]:
        """Special tokens that the parser has to see."""
        if self.tools is None:
            return harmony.MARKS
        thought = (self.reasoning.opening, self.reasoning.closing) if self.reasoning else ()
        return (*self.tools.marks, *thought)

    def parser(self, tools: Tools | None, *, thinking: bool) -> OutputParser:
        """tools: None if no calls are expected. thinking: the prompt has opened a thought."""
        if self.harmony:
            return harmony.HarmonyParser(tools=tools is not None)
        if tools is None and self.reasoning is None:
            return PlainParser()
        return MarkParser(self.reasoning, self.tools, tools, thinking=thinking)

    def described(self) -> dict[str, Any]:
        """For /health."""
        tools = Choice(self.tools.name if self.tools else harmony.NAME, self.reason)
        thought = harmony.NAME if self.harmony else self.reasoning and self.reasoning.name
        return {"tools": tools._asdict(), "reasoning": thought}


def profile_of(template: str, info: Mapping[str, Any]) -> Profile:
    """template: the chat template's source. info["tool_form"] and info["reasoning_form"] override
    what it shows. Raises UsageError for a form that does not exist.
    """
    named = info.get("tool_form")
    reason = "asked for" if named else "the chat template teaches it"
    teaches, remembers = bool(_TOOLS.search(template)), "tool_calls" in template
    if named == harmony.NAME or (named is None and harmony.SIGN in template):
        return Profile(None, None, True, True, reason)
    form = tool_form(template, named)
    if form is None:
        reason = "the chat template teaches no form"
    thought = reasoning_form(template, info.get("reasoning_form"))
    return Profile(form or _PLAIN, thought, teaches, remembers, reason)
