"""Tools for a model whose chat template does not explain them: the system message does, in the form
that the model knows. Where the template cannot render calls and results either, they become text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from kt.server.tool_parsers import ToolForm

_SYSTEM: Final = """You may call functions to help with the user's request. The functions:

%s

To call a function, write nothing but its name and its arguments in this form:
%s"""


def explain(
    messages: Sequence[dict[str, Any]], tools: Sequence[Any], form: ToolForm
) -> list[dict[str, Any]]:
    """`messages` with a description of `tools` in the first one."""
    if not tools:
        return list(messages)
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _SYSTEM % (listed, form.written([("NAME", {"KEY": "VALUE"})]))
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def as_text(message: dict[str, Any], form: ToolForm) -> dict[str, Any]:
    """A message without tool calls, and a result as a user's turn."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    if not message.get("tool_calls"):
        return message
    called = [call["function"] for call in message["tool_calls"]]
    written = form.written([(call["name"], call["arguments"]) for call in called])
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message["content"], written]))}
