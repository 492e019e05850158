"""What all endpoints share: the engine, the tokenizer, the model's names and habits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import Request as HttpRequest

from kt.server import chat
from kt.server.chat_request import ChatRequest
from kt.server.errors import ApiError
from kt.server.generation import Answers, Generations, in_thread, while_connected
from kt.server.profile import Profile

if TYPE_CHECKING:
    from kt.engine.engine import Engine
    from kt.tokenizer import Tokenizer


@dataclass(frozen=True)
class Service:
    """info: as create_app got it."""

    engine: Engine
    tokenizer: Tokenizer
    info: Mapping[str, Any]
    profile: Profile
    generations: Generations

    @property
    def model(self) -> str:
        return str(self.info["model"])

    @cached_property
    def names(self) -> frozenset[str]:
        """What requests may call the model: also a path's last part, folder or file with suffix."""
        names = {self.model, *self.info.get("aliases", ())}
        return frozenset(names | {name.rstrip("/").rpartition("/")[2] for name in names})

    def check_model(self, name: str | None) -> None:
        """None asks for whatever is served. Raises ApiError unless `name` is the served model's."""
        if name is not None and name not in self.names:
            message = f"the model {name[:256]!r} is not served here; ask for {self.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def turn(self, body: ChatRequest, limit: int | None = None) -> chat.Turn:
        """The conversation, rendered. Raises ApiError, also if it has more than `limit` tokens."""
        self.check_model(body.model)
        return await in_thread(
            body.messages_field, lambda: chat.prepare(self.tokenizer, self.profile, body, limit)
        )

    async def begin(self, body: ChatRequest, http: HttpRequest) -> tuple[chat.Turn, Answers]:
        """Submits a conversation. Raises ApiError."""
        turn = await while_connected(http, self.turn(body, self.engine.limit))
        submit = self.generations.submit(turn.task, body, http.state.request_id)
        return turn, await while_connected(http, submit)
