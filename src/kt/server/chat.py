"""/v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kt.engine.request import Delta, TokenInfo
from kt.server.chat_request import ChatRequest
from kt.server.generation import Answer
from kt.server.stream import Choice

if TYPE_CHECKING:
    from kt.tokenizer import Tokenizer


def prompt_ids(tokenizer: Tokenizer, body: ChatRequest) -> list[int]:
    """The conversation through the chat template. Raises KtError with the template's words."""
    messages = [message.for_template() for message in body.messages]
    return tokenizer.encode_chat(messages, **body.chat_template_kwargs)


class ChatForm:
    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs

    def opening(self, index: int) -> Choice | None:
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def piece(self, index: int, delta: Delta) -> Choice | None:
        if not delta.text and not self._logprobs:
            return None
        return {**self._chunk(index, {"content": delta.text}), **self._logprobs_of(delta.tokens)}

    def ending(self, index: int, reason: str) -> Choice:
        return {**self._chunk(index, {}), "finish_reason": reason}

    def whole(self, index: int, answer: Answer, reason: str) -> Choice:
        message = {"role": "assistant", "content": "".join(answer.text), "refusal": None}
        logprobs = self._logprobs_of(answer.tokens)
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": reason,
            **logprobs,
        }

    @staticmethod
    def _chunk(index: int, delta: dict[str, Any]) -> Choice:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs_of(self, tokens: list[TokenInfo]) -> dict[str, Any]:
        if not self._logprobs:
            return {}
        content = [self._token(token) for token in tokens]
        return {"logprobs": {"content": content, "refusal": None}}

    def _token(self, token: TokenInfo) -> dict[str, Any]:
        decode = self._tokenizer.decode
        best = [_entry(decode([id], skip_special=False), logprob) for id, logprob in token.best]
        return {**_entry(token.text, token.logprob), "top_logprobs": best}


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    """bytes is null for a token without text of its own, such as a part of a character."""
    content = None if not text or "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": content}
