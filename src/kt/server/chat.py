"""From a chat request to a prompt, and how its answer has to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kt.engine.request import Grammar
from kt.errors import KtError
from kt.server import grammars, tool_prompt
from kt.server.chat_request import ChatRequest
from kt.server.generation import Task
from kt.server.output import OutputParser
from kt.server.profile import Profile
from kt.server.tool_parsers import Tools

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer

# So many of the prompt's last tokens tell whether it has opened a thought.
_END_TOKENS: Final = 16
_HARMONY_ANSWER: Final = "<|channel|>final<|message|>"


@dataclass(frozen=True)
class Turn:
    """A rendered conversation. tools: functions that may be called, None if calls are not expected;
    thinking: the prompt has opened a thought; grammar, grammar_after, shown: as in the engine's
    Request; parallel: whether more calls than one may be told; param: what the client calls the
    conversation.
    """

    prompt_ids: list[int]
    profile: Profile
    tools: Tools | None
    thinking: bool
    grammar: Grammar | None
    grammar_after: str | None
    shown: tuple[str, ...]
    parallel: bool
    param: str

    @property
    def task(self) -> Task:
        """For the engine."""
        return Task(
            [self.prompt_ids], self.grammar, self.grammar_after, self.shown, param=self.param
        )

    def parser(self) -> OutputParser:
        """For one answer."""
        return self.profile.parser(self.tools, thinking=self.thinking)


def prepare(
    tokenizer: Tokenizer, profile: Profile, body: ChatRequest, limit: int | None = None
) -> Turn:
    """Renders, encodes, and finds out what to expect. limit: of the prompt's tokens. Raises KtError
    with the template's words, or TextTooLong.
    """
    ids = prompt_ids(tokenizer, profile, body, limit)
    end = tokenizer.decode(ids[-_END_TOKENS:], skip_special=False)
    callable_ = body.callable_tools()
    form = profile.reasoning
    return Turn(
        prompt_ids=ids,
        profile=profile,
        tools={t.function.name: t.function.parameters for t in callable_} if callable_ else None,
        thinking=form is not None and form.is_open(end),
        grammar=_grammar(profile, body, tokenizer.special_ids),
        grammar_after=_grammar_after(profile, body, end),
        shown=tuple(mark for mark in profile.shown if mark in tokenizer.special_ids),
        parallel=body.parallel_tool_calls,
        param=body.messages_field,
    )


def prompt_ids(
    tokenizer: Tokenizer, profile: Profile, body: ChatRequest, limit: int | None = None
) -> list[int]:
    """The conversation through the chat template.

    Most templates expect the arguments of earlier calls as objects, some as text: if one fails over
    the former, it gets the latter.
    """
    try:
        return _encode(tokenizer, profile, body, limit, parsed=True)
    except KtError:
        if not any(message.tool_calls for message in body.messages):
            raise
        try:
            return _encode(tokenizer, profile, body, limit, parsed=False)
        except KtError:
            pass
        raise


def _encode(
    tokenizer: Tokenizer, profile: Profile, body: ChatRequest, limit: int | None, *, parsed: bool
) -> list[int]:
    messages = [message.for_template(parsed=parsed) for message in body.messages]
    # A model that may not call is not told of tools.
    tools = [] if body.tool_choice.type == "none" else [tool.for_template() for tool in body.tools]
    variables = {**body.template_variables(), "limit": limit}
    form = profile.tools
    if form is not None and not profile.remembers:
        messages = [tool_prompt.as_text(message, form) for message in messages]
    if form is not None and not profile.teaches:
        return tokenizer.encode_chat(tool_prompt.explain(messages, tools, form), **variables)
    if tools:
        return tokenizer.encode_chat(messages, tools=tools, **variables)
    return tokenizer.encode_chat(messages, **variables)


def _grammar(profile: Profile, body: ChatRequest, special: Mapping[str, int]) -> Grammar | None:
    asked = body.grammar(body.response_format)
    tools = body.callable_tools()
    answer = body.answer_schema(body.response_format)
    in_channels = profile.harmony and answer is not None
    if not in_channels and (not tools or (body.tool_choice.type == "auto" and asked is None)):
        return asked
    signatures = [grammars.Signature(t.function.name, t.function.parameters) for t in tools]
    text = grammars.calls(
        profile.tools,
        signatures,
        special,
        parallel=body.parallel_tool_calls and body.tool_choice.function is None,
        answer=answer,
    )
    return Grammar("lark", text, parts=_parts(body, signatures, asked, answer))


def _parts(
    body: ChatRequest,
    signatures: Sequence[grammars.Signature],
    asked: Grammar | None,
    answer: Mapping[str, Any] | None,
) -> tuple[Grammar, ...]:
    """The schemas in the grammar, under the client's names."""
    numbers = {tool.function.name: i for i, tool in enumerate(body.tools)}
    parts = [
        Grammar(
            "json_schema",
            grammars.schema_text(grammars.arguments(signature)),
            body.parameters_field.format(numbers[signature.name]),
        )
        for signature in signatures
    ]
    if asked is not None and answer is not None:
        parts.append(Grammar("json_schema", grammars.schema_text(answer), asked.origin))
    return tuple(parts)


def _grammar_after(profile: Profile, body: ChatRequest, prompt_end: str) -> str | None:
    """A thought is free; the grammar binds what follows it."""
    grammar = body.grammar(body.response_format)
    forced = bool(body.callable_tools()) and body.tool_choice.type != "auto"
    if grammar is None and not forced:
        return None
    if profile.harmony:
        # The grammar of calls and schemas covers the channels before the answer.
        schema = body.answer_schema(body.response_format)
        return None if body.callable_tools() or schema is not None else _HARMONY_ANSWER
    form = profile.reasoning
    return None if form is None or form.is_closed(prompt_end) else form.closing
