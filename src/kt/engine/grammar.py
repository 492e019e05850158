"""Answers of a given form: which tokens may come next, as bit masks from llguidance."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

from kt.engine import schema_blame
from kt.engine.batch import U32
from kt.engine.grammar_errors import reason, refusal, refusal_later
from kt.engine.grammar_source import Words, compiled, wrap
from kt.engine.grammar_trial import TooMuch, Trial
from kt.engine.request import Grammar, InvalidGrammar
from kt.errors import KtError

KEPT: Final = 64
"""Compiled grammars that are kept for the next request."""
KEPT_CHARACTERS: Final = 1 << 22
"""Of their texts. A character can take 15 bytes."""


class Vocabulary(Protocol):
    """The part of a tokenizer that grammars need. token_bytes: of every id, special tokens' text
    included; special_ids: text -> id of those that ordinary text never spells.
    """

    @property
    def special_ids(self) -> Mapping[str, int]: ...
    def token_bytes(self) -> Sequence[bytes]: ...
    def encode(self, text: str, *, add_bos: bool = True) -> list[int]: ...


class GrammarCompiler:
    """Compiles grammars on the caller's thread, never the engine's, and keeps the last ones.

    vocab: ids that logits have. eos_ids: allowed where the grammar may end, and only there.
    """

    def __init__(self, vocabulary: Vocabulary, vocab: int, eos_ids: AbstractSet[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab = vocab
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._token_bytes: list[bytes] = []
        self._trial: Trial | None = None
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()

    def constraint(self, grammar: Grammar, after: str | None = None) -> Constraint:
        """A fresh Constraint; `after`: the text behind which it begins. Raises InvalidGrammar."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._wrap()
            matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = matcher
            self._compiled.move_to_end(grammar)
            self._forget()
            own = matcher.deep_copy()

        def failed(error: str) -> InvalidGrammar:
            with self._lock:  # its copies share their lexer, and with it what ails it
                self._compiled.pop(grammar, None)
            return refusal_later(grammar, error)

        return Constraint(own, self._tokenizer, self._token_bytes, failed, after)

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is compiled already. Waits for nothing."""
        return grammar in self._compiled

    def close(self) -> None:
        """Ends the process that tries grammars."""
        if self._trial is not None:
            self._trial.close()

    def _forget(self) -> None:
        """Drops the oldest grammars where too many are kept, but never the last one."""
        kept, characters = self._compiled, sum(len(grammar.text) for grammar in self._compiled)
        while len(kept) > 1 and (len(kept) > KEPT or characters > KEPT_CHARACTERS):
            grammar, _ = kept.popitem(last=False)
            characters -= len(grammar.text)

    def _wrap(self) -> Any:
        if not self._eos_ids:
            raise InvalidGrammar("the model has no end token, which a grammar needs")
        known = list(self._vocabulary.token_bytes())[: self._vocab]
        self._token_bytes = known + [b""] * (self._vocab - len(known))
        special = sorted(i for i in self._vocabulary.special_ids.values() if i < self._vocab)
        words = Words(self._token_bytes, special, self._eos_ids)
        self._trial = Trial(words)
        return wrap(words, lambda text: self._vocabulary.encode(text, add_bos=False))

    def _compile(self, grammar: Grammar) -> Any:
        matcher, error = self._try(grammar)
        if not error:
            return matcher
        for part in grammar.parts:
            _, blamed = self._try(part)
            if blamed:
                raise refusal(part, blamed, self._place(part, blamed))
        raise refusal(grammar, error, self._place(grammar, error))

    def _place(self, grammar: Grammar, error: str) -> str:
        """Where in a schema the error comes from, as far as it can be known."""
        if grammar.kind != "json_schema":
            return ""

        why = reason(error)

        def fails(schema: Any) -> bool:
            return reason(self._try(Grammar("json_schema", json.dumps(schema)))[1]) == why

        try:
            return schema_blame.place(json.loads(grammar.text), fails)
        except (InvalidGrammar, ValueError):  # a part was too much; the whole is no JSON
            return ""

    def _try(self, grammar: Grammar) -> tuple[Any, str]:
        """llguidance's matcher, or None and what it has against the grammar. Raises InvalidGrammar
        for one that is too much for it.
        """
        assert self._trial is not None
        try:
            error = self._trial.error(grammar)
        except TooMuch as much:
            raise refusal(grammar, much.message) from None
        return (None, error) if error else compiled(self._tokenizer, grammar)


class Constraint:
    """One answer's progress through a grammar.

    active: whether the answer has begun; until then everything but an end is allowed. matcher:
    llguidance's. failed: makes an error of its words. mask [(vocab + 31) // 32]: the ids allowed
    next, once it is active; a step's Masks puts it here.
    """

    def __init__(
        self,
        matcher: Any,
        tokenizer: Any,
        token_bytes: list[bytes],
        failed: Callable[[str], InvalidGrammar],
        after: str | None,
    ) -> None:
        self.matcher = matcher
        self._failed = failed
        self.mask: U32 | None = None
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        self._marker = (after or "").encode()
        self._seen = b""  # the end of the text in which the marker is looked for
        self.active = after is None

    @property
    def complete(self) -> bool:
        """Whether nothing but an end may follow."""
        return self.active and bool(self.matcher.is_stopped())

    def check(self) -> None:
        """Raises InvalidGrammar where the mask of the next token was too much for llguidance."""
        if self.active and self.matcher.is_error():
            raise self._failed(str(self.matcher.get_error()))

    def accept(self, token: int) -> None:
        """Goes on by one token. Raises InvalidGrammar where the grammar becomes too much for
        llguidance, and KtError where a marker's token has text behind it that does not fit.
        """
        if self.active:  # the mask had it, so whatever fails is the grammar's fault
            self.matcher.consume_token(token)
            self.check()
            return
        text = self._seen + self._token_bytes[token]
        at = text.find(self._marker)
        if at < 0:
            self._seen = text[-len(self._marker) :]
            return
        self.active = True
        rest = text[at + len(self._marker) :].lstrip()
        if rest and not self.matcher.consume_tokens(self._tokenizer.tokenize_bytes(rest)):
            why = reason(str(self.matcher.get_error()))
            raise KtError(f"the answer cannot go on as its grammar wants: {why}")
