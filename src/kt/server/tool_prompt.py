"""Tools for a model whose chat template knows none: they are explained in the system message, and
calls and results become text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

_SYSTEM: Final = """You may call functions to help with the user's request. The functions:

%s

To call a function, write a JSON object with its name and its arguments between these marks:
<tool_call>
{"name": NAME, "arguments": {...}}
</tool_call>"""


def explain(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """`messages` in which nothing is left that a template without tools could not render."""
    turns = [_as_text(message) for message in messages]
    if not tools:
        return turns
    text = _SYSTEM % "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    if turns and turns[0]["role"] == "system":
        first = {**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}
        return [first, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    if not message.get("tool_calls"):
        return message
    parts = [message["content"]] if message["content"] else []
    for call in message["tool_calls"]:
        shown = json.dumps(call["function"], ensure_ascii=False)
        parts.append(f"<tool_call>\n{shown}\n</tool_call>")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(parts)}
