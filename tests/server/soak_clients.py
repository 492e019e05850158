"""Clients that keep a server busy: every kind of request at once, and many that leave."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

Body = dict[str, Any]

FILLER = "The harbour of the old town lies below the hill, and ships come in with the tide. "
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 0, "maximum": 9999},
        "size": {"enum": ["small", "large"]},
    },
    "required": ["city", "people", "size"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "describe", "parameters": SCHEMA}}


def bodies(model: str) -> list[Body]:
    """Greedy chat requests: short and long prompts, some with a common beginning, short and long
    answers, tool calls, schemas.
    """
    found: list[Body] = []
    for number, repeats in enumerate((0, 1, 4, 12, 12)):
        question = f"{FILLER * repeats}Question {number}: what is a harbour?"
        messages = [{"role": "user", "content": question}]
        common = {"model": model, "messages": messages, "temperature": 0}
        answer_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        found.append({**common, "max_tokens": (40, 8, 24, 4, 16)[number]})
        if number < 3:
            found.append({**common, "max_tokens": 60, "response_format": answer_format})
            found.append(
                {**common, "max_tokens": 60, "tools": [TOOL], "tool_choice": "required",
                 "parallel_tool_calls": False}
            )  # fmt: skip
    return found


@dataclass
class Told:
    """What an answer has said. calls: names and arguments."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    reason: str | None = None

    def add(self, message: dict[str, Any]) -> None:
        """A message, or the next delta of one."""
        self.text += message.get("content") or ""
        for call in message.get("tool_calls") or ():
            function = call["function"]
            if "id" in call:
                self.calls.append([function["name"], ""])
            self.calls[-1][1] += function["arguments"]

    def begins(self, whole: Told) -> bool:
        """Whether this is the beginning of `whole`."""
        calls = zip(self.calls, whole.calls, strict=False)
        return (
            whole.text.startswith(self.text)
            and len(self.calls) <= len(whole.calls)
            and all(a[0] == b[0] and b[1].startswith(a[1]) for a, b in calls)
        )


class Clients:
    """Sends `bodies` to a server, in any order and number. expected: the answers of a server that
    has nothing else to do, in the order of bodies. faults: what was not as it should be.
    """

    def __init__(self, url: str, bodies: Sequence[Body]) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=url, timeout=300, limits=limits)
        self._bodies = bodies
        self.expected: list[Told] = []
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def learn(self) -> None:
        """Asks everything once, one after the other."""
        for body in self._bodies:
            self.expected.append(await self._whole(body))

    async def busy(self, clients: int, seconds: float) -> None:
        """So many clients for so long; then those that wait for an answer leave, too."""
        tasks = [asyncio.create_task(self._client(random.Random(seed))) for seed in range(clients)]
        done, running = await asyncio.wait(tasks, timeout=seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in done:  # a client ends by itself only where it fails
            task.result()

    async def _client(self, rng: random.Random) -> None:
        while True:
            index = rng.randrange(len(self._bodies))
            kind = rng.choice(["whole", "stream", "stream", "leaves", "hangs up"])
            await self._one(index, kind, rng)
            self.counts[kind] += 1

    async def _one(self, index: int, kind: str, rng: random.Random) -> None:
        body, expected = self._bodies[index], self.expected[index]
        told = Told()
        try:
            if kind == "whole":
                told = await self._whole(body)
            elif kind == "hangs up":
                await asyncio.wait_for(self._whole(body), rng.uniform(0.01, 3))
                return
            else:
                most = rng.randrange(20) if kind == "leaves" else None
                async for delta, reason in self._stream(body):
                    told.add(delta)
                    told.reason = reason or told.reason
                    if most is not None and (most := most - 1) < 0:
                        break
        except asyncio.TimeoutError:
            return
        except (httpx.HTTPError, LookupError, ValueError) as error:
            self.faults.append(f"{kind} {index}: {type(error).__name__} {error}")
            return
        right = told.begins(expected) if kind == "leaves" else told == expected
        if not right:
            self.faults.append(f"{kind} {index}: {told}, not {expected}")

    async def _whole(self, body: Body) -> Told:
        response = await self._http.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        choice = response.json()["choices"][0]
        told = Told(reason=choice["finish_reason"])
        told.add(choice["message"])
        return told

    async def _stream(self, body: Body) -> AsyncIterator[tuple[dict[str, Any], str | None]]:
        """Deltas, each with the finish reason if it has come."""
        body = {**body, "stream": True}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    return
                if data:
                    choice = json.loads(data)["choices"][0]
                    yield choice["delta"], choice["finish_reason"]
        raise ValueError("the stream broke off")
