"""The endpoints that compute something."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from kt.server import completions, embeddings, messages, responses, tokens, typed_stream
from kt.server.chat_form import ChatForm
from kt.server.chat_request import ChatRequest
from kt.server.completion_request import CompletionRequest
from kt.server.embeddings import EmbeddingsRequest
from kt.server.generation import Task, in_thread, while_connected
from kt.server.messages_request import CountRequest, MessagesRequest
from kt.server.responses_request import ResponsesRequest
from kt.server.service import Service
from kt.server.stream import respond
from kt.server.tokens import DetokenizeRequest, TokenizeRequest


def add_openai(app: FastAPI, service: Service) -> None:
    """Chat completions, completions, responses, embeddings."""

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        turn, answers = await service.begin(body, http)
        form = ChatForm(service.tokenizer, turn, body.logprobs)
        return await respond(http, body, answers, form, service.model)

    @app.post("/v1/completions")
    async def text_completions(body: CompletionRequest, http: Request) -> Response:
        service.check_model(body.model)
        tokenizer = service.tokenizer
        limit = service.engine.limit
        prompts = await in_thread("prompt", lambda: completions.prompt_ids(tokenizer, body, limit))
        task = Task(prompts, grammar=body.grammar())
        submit = service.generations.submit(task, body, http.state.request_id)
        answers = await while_connected(http, submit)
        form = completions.CompletionForm(tokenizer, body, prompts)
        return await respond(http, body, answers, form, service.model)

    @app.post("/v1/responses")
    async def create_response(body: ResponsesRequest, http: Request) -> Response:
        turn, answers = await service.begin(body.chat(), http)
        form = responses.ResponsesForm(body, service.model)
        return await typed_stream.respond(http, body.stream, answers, turn, form)

    @app.post("/v1/embeddings")
    async def create_embeddings(body: EmbeddingsRequest, http: Request) -> dict[str, Any]:
        return await embeddings.embed(service, body, http)


def add_anthropic(app: FastAPI, service: Service) -> None:
    """Messages, in Anthropic's form."""

    @app.post("/v1/messages")
    async def create_message(body: MessagesRequest, http: Request) -> Response:
        turn, answers = await service.begin(body.chat(), http)
        form = messages.MessagesForm(service.model, len(turn.prompt_ids))
        return await typed_stream.respond(http, body.stream, answers, turn, form)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest) -> dict[str, Any]:
        return {"input_tokens": len((await service.turn(body.chat())).prompt_ids)}


def add_tokens(app: FastAPI, service: Service) -> None:
    """Text to ids and back."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        return await tokens.tokenize(service, body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        return await tokens.detokenize(service, body)
