"""Chat templates: a model's Jinja template, compiled in a sandbox, with the helpers that templates
rely on.

Extensions and globals are those of transformers' apply_chat_template, because templates are written
against it. A template that does not compile fails the load; nothing falls back to another template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kt.errors import KtError, ModelError

# Names that a message's reasoning goes by; templates read the first (gpt-oss: the second).
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class TemplateError(KtError):
    """The template refused the messages, in its own words, or could not render them."""

    exit_code = 2


class ChatTemplate:
    """One template, or several by name ("default", "tool_use", ...)."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """special_tokens: bos_token and the like, as the template sees them. Raises ModelError."""
        environment = _environment()
        self._special_tokens = dict(special_tokens)
        self._templates = {
            name: _compile(environment, name, source) for name, source in sources.items()
        }

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        extra: Mapping[str, Any],
    ) -> str:
        """The prompt. Null fields of a message count as absent. Raises TemplateError."""
        if not messages:
            raise TemplateError("there are no messages")
        template = self._choose(tools)
        values = {**self._special_tokens, "documents": None, **extra}
        values["messages"] = [_normalise(message) for message in messages]
        values["tools"] = list(tools) if tools else None
        values["add_generation_prompt"] = add_generation_prompt
        try:
            return template.render(values)
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template failed: {what}") from None

    def _choose(self, tools: Sequence[Any] | None) -> jinja2.Template:
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            names = ", ".join(self._templates)
            raise TemplateError(f"the model has several chat templates and no default: {names}")
        return self._templates["default"]


def _normalise(message: Message) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None}
    reasoning = next((result[name] for name in _REASONING if name in result), None)
    if reasoning is None:
        return result
    return {"thinking": reasoning, **result, "reasoning_content": reasoning}


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks what an assistant wrote (for training); here
    it is a scope.
    """

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _compile(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        why = f"line {error.lineno}: {error.message}"
        raise ModelError(f"the chat template {name!r} does not compile: {why}") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model has seen in training.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
