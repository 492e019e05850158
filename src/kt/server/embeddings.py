"""/v1/embeddings: final hidden states as vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from fastapi import Request as HttpRequest
from pydantic import Field

from kt.engine.batch import F32
from kt.engine.embedding import Pooling
from kt.engine.request import InvalidRequest
from kt.errors import KtError
from kt.server.completion_request import Prompts
from kt.server.errors import from_kt
from kt.server.generation import in_thread, while_connected
from kt.server.schemas import ModelName, StrictModel
from kt.server.service import Service


class EmbeddingsRequest(StrictModel):
    """pooling and normalize are extensions."""

    model: ModelName = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    pooling: Pooling = Field("mean", description="the mean of all positions, or the last one")
    normalize: bool = Field(True, description="to length 1")

    harmless = frozenset({"user"})
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"dimensions": ()}
    elsewhere: ClassVar[Mapping[str, str]] = {"prompt": "it is 'input' here"}


async def embed(service: Service, body: EmbeddingsRequest, http: HttpRequest) -> dict[str, Any]:
    """OpenAI's list of vectors. Raises ApiError."""
    service.check_model(body.model)
    encode, limit = service.tokenizer.encode, service.engine.limit
    prompts = await in_thread(
        "input",
        lambda: [encode(p, limit=limit) if isinstance(p, str) else list(p) for p in body.input],
    )
    try:
        vectors = await while_connected(http, _all(service, prompts, body.pooling))
    except KtError as error:
        blamed = isinstance(error, InvalidRequest) and error.param == "prompt"
        raise from_kt(error, param="input" if blamed else None) from error
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(vector, body)}
        for index, vector in enumerate(vectors)
    ]
    tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": service.model, "usage": usage}


async def _all(service: Service, prompts: list[list[int]], pooling: Pooling) -> list[F32]:
    """Vectors in order; if one fails or nobody waits any more the others are dropped."""
    futures = []
    try:
        for prompt in prompts:
            futures.append(service.engine.embed(prompt, pooling))
        return [await asyncio.wrap_future(future) for future in futures]
    finally:
        for future in futures:
            future.cancel()


def _shown(vector: F32, body: EmbeddingsRequest) -> list[float] | str:
    length = float(np.linalg.norm(vector))
    if body.normalize and length > 0:
        vector = vector / np.float32(length)
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    shown: list[float] = vector.tolist()
    return shown
