"""/tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from kt.server.chat_request import ChatRequest
from kt.server.faults import missing, wrong_value
from kt.server.generation import in_thread
from kt.server.schemas import ModelName, StrictModel
from kt.server.service import Service
from kt.server.translate import validated

MAX_IDS = 1 << 20


class TokenizeRequest(StrictModel):
    """A text, or messages (with tools) that the chat template renders."""

    model: ModelName = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = Field([])
    chat_template_kwargs: dict[str, Any] = Field({})
    add_special_tokens: bool = Field(True, description="put the model's BOS before a text")

    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("text", "content", "input"), "it is 'prompt' here"
    )
    harmless = frozenset({"add_generation_prompt", "return_token_strs"})

    @model_validator(mode="after")
    def _one_input(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            if self.prompt is None:
                raise missing("prompt")
            raise wrong_value("it cannot go with prompt; give one of them", "messages")
        return self


class DetokenizeRequest(StrictModel):
    model: ModelName = None
    tokens: list[int] = Field(max_length=MAX_IDS)

    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("ids", "token_ids"), "it is 'tokens' here"
    )

    @model_validator(mode="after")
    def _ids(self) -> DetokenizeRequest:
        for i, id_ in enumerate(self.tokens):
            if not 0 <= id_ < 1 << 31:
                raise wrong_value("a token id is a number from 0 to 2^31 - 1", "tokens", i)
        return self


async def tokenize(service: Service, body: TokenizeRequest) -> dict[str, Any]:
    """The ids that a completion or a chat would start from. Raises ApiError."""
    if body.messages is not None:
        fields: dict[str, Any] = {
            "model": body.model,
            "messages": body.messages,
            "tools": body.tools,
            "chat_template_kwargs": body.chat_template_kwargs,
        }
        ids = (await service.turn(validated(ChatRequest, fields, {}))).prompt_ids
    else:
        service.check_model(body.model)
        text, bos = body.prompt or "", body.add_special_tokens
        ids = await in_thread(
            "prompt", lambda: service.tokenizer.encode(text, special=True, add_bos=bos)
        )
    return {"count": len(ids), "max_model_len": service.engine.limit, "tokens": ids}


async def detokenize(service: Service, body: DetokenizeRequest) -> dict[str, Any]:
    """The text of ids, special tokens included. Raises ApiError."""
    service.check_model(body.model)
    decode = service.tokenizer.decode
    text = await in_thread("tokens", lambda: decode(body.tokens, skip_special=False))
    return {"prompt": text}
