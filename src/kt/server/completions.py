"""/v1/completions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kt.engine.request import Delta, TokenInfo
from kt.server.completion_request import CompletionRequest
from kt.server.generation import Answer
from kt.server.stream import Choice

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer


def prompt_ids(tokenizer: Tokenizer, body: CompletionRequest, limit: int) -> list[list[int]]:
    """Each prompt's ids; a text gets the model's BOS if it wants one, ids are taken as they are.
    Raises TextTooLong for a text of more than `limit` ids.

    Special tokens are recognised in the text: whoever writes a raw prompt writes its marks, too.
    """
    return [
        tokenizer.encode(prompt, special=True, limit=limit)
        if isinstance(prompt, str)
        else list(prompt)
        for prompt in body.prompt
    ]


class CompletionForm:
    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"
    reasoning_tokens = 0  # a raw text has no thoughts that are told apart

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, prompts: list[list[int]]):
        self._tokenizer = tokenizer
        self._logprobs = body.logprobs is not None
        self._n = body.n
        self._echoes = [self._echo(*pair) for pair in zip(body.prompt, prompts, strict=True)]
        self._echo_wanted = body.echo
        self._offsets: dict[int, int] = defaultdict(int)

    def opening(self, index: int) -> list[Choice]:
        if not self._echo_wanted or self._logprobs:  # with the latter it comes in a piece
            return []
        return [self._choice(index, self._echoes[index // self._n], None, None)]

    def piece(self, index: int, delta: Delta) -> list[Choice]:
        if delta.prompt and self._logprobs:
            logprobs = self._logprobs_of(index, delta.prompt)
            return [self._choice(index, self._echoes[index // self._n], logprobs, None)]
        if not delta.tokens and not delta.text:
            return []
        if not delta.text and not self._logprobs:
            return []
        return [self._choice(index, delta.text, self._logprobs_of(index, delta.tokens), None)]

    def ending(self, index: int, reason: str) -> list[Choice]:
        return [self._choice(index, "", None, reason)]

    def whole(self, index: int, answer: Answer, reason: str) -> Choice:
        logprobs = self._logprobs_of(index, [*answer.prompt, *answer.tokens])
        echo = self._echoes[index // self._n] if self._echo_wanted else ""
        return self._choice(index, echo + "".join(answer.text), logprobs, reason)

    def _echo(self, prompt: str | tuple[int, ...], ids: list[int]) -> str:
        """A text as it was sent, ids as their text."""
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(ids)

    @staticmethod
    def _choice(index: int, text: str, logprobs: Any, reason: str | None) -> Choice:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_of(self, index: int, tokens: list[TokenInfo]) -> dict[str, Any] | None:
        """Four lists of one entry a token; text_offset counts characters of this answer's text."""
        if not self._logprobs:
            return None
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._best(token) for token in tokens],
            "text_offset": offsets,
        }

    def _best(self, token: TokenInfo) -> dict[str, float] | None:
        if token.logprob is None:  # the prompt's first token has no distribution
            return None
        return {
            self._tokenizer.decode([id], skip_special=False): logprob for id, logprob in token.best
        }
