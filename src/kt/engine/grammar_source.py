"""Grammars in llguidance's hands: the same in the process that tries them and in the one that uses
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kt.engine.request import Grammar


@dataclass(frozen=True)
class Words:
    """A model's tokens. tokens: the bytes of every id that logits have. special_ids: of those that
    ordinary text never spells. eos_ids: allowed where a grammar may end; not empty.
    """

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_ids: Sequence[int]


def wrap(words: Words, encode: Callable[[str], list[int]]) -> Any:
    """llguidance's view of `words`; takes about 0.3 s for 50,000. encode: ids of a text."""
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapper = TokenizerWrapper(_Wrapped(words, encode))
    return LLTokenizer(wrapper, n_vocab=len(words.tokens), eos_token=list(words.eos_ids))


def compiled(tokenizer: Any, grammar: Grammar) -> tuple[Any, str]:
    """llguidance's matcher, or None and what it has against the grammar."""
    from llguidance import LLMatcher

    try:
        source = _source(grammar)
    except Exception as error:  # its parsers raise many kinds, for what the client has sent
        return None, str(error) or type(error).__name__
    matcher = LLMatcher(tokenizer, source, log_level=0)
    return (None, str(matcher.get_error())) if matcher.is_error() else (matcher, "")


class _Wrapped:
    """What llguidance's TokenizerWrapper asks for."""

    bos_token_id = None

    def __init__(self, words: Words, encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = words.eos_ids[0]
        self.tokens = words.tokens
        self.special_token_ids = words.special_ids
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's own form. Raises Exception."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    match grammar.kind:
        case "json_object":
            return str(LLMatcher.grammar_from_json_schema('{"type": "object"}'))
        case "json_schema":
            return str(LLMatcher.grammar_from_json_schema(grammar.text))
        case "regex":
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case "lark":
            return str(LLMatcher.grammar_from_lark(grammar.text))
        case "gbnf":
            return str(LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.text)))
