"""Chat templates: a model's Jinja template, compiled in a sandbox, with the helpers that templates
rely on.

Extensions and globals are those of transformers' apply_chat_template, because templates are written
against it. A template that does not compile fails the load; nothing falls back to another template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import TemplateRuntimeError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kt.errors import KtError, ModelError
from kt.text.time_limit import TimeUp, time_limit
from kt.units import KIB, MIB

MAX_SOURCE: Final = 512 * KIB
"""Characters of a template; the longest known ones have some 20 thousand."""
RENDER_SECONDS: Final = 5.0
# What one operation may make: a template can ask for any product or power.
_MAX_REPEATED: Final = 64 * MIB
_MAX_BITS: Final = 1 << 16

# Names that a message's reasoning goes by; templates read the first (gpt-oss: the second).
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")

_MAX_WORDS: Final = 2000
"""Characters of a template's own error that are told."""

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
            with time_limit(RENDER_SECONDS):
                return template.render(values)
        except TimeUp:
            limit = f"more than {RENDER_SECONDS:g} seconds"
            raise TemplateError(f"the chat template took too long: {limit}") from None
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


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox; what it computes has bounds, and nothing is computed while compiling."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _is_excessive(operator, left, right):
            raise TemplateRuntimeError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _is_excessive(operator: str, left: Any, right: Any) -> bool:
    """Whether the result would take much more memory than the operands."""
    if operator == "%":  # of text: formats such as %999999999d
        return isinstance(left, str) and re.search(r"%[^a-zA-Z%]*(\d{5}|\*)", left) is not None
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
        return bits > _MAX_BITS
    if operator == "**":
        return False
    if isinstance(left, int):
        left, right = right, left
    if not isinstance(right, int) or not isinstance(left, (str, bytes, list, tuple)):
        return False
    return len(left) * right > _MAX_REPEATED


@pass_context
def _finished(context: Context, value: Any) -> Any:
    # A function that wants the context keeps Jinja from computing outputs while it compiles.
    return value


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        optimized=False,
        finalize=_finished,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _compile(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise ModelError(
            f"the chat template {name[:64]!r} has {len(source)} characters (at most {MAX_SOURCE})"
        )
    try:
        with time_limit(RENDER_SECONDS):
            return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        why = f"line {error.lineno}: {error.message}"
    except TimeUp:
        why = "it takes too long"
    except Exception as error:  # of Python's compiler, which sees what Jinja made of it
        why = f"{type(error).__name__}: {error}"[:200]
    raise ModelError(f"the chat template {name[:64]!r} does not compile: {why}")


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


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message)[:_MAX_WORDS])


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
