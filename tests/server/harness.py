"""A real server on a free loopback port, in a thread, over an engine with a fake executor."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import pytest

from kt.engine.engine import Engine
from kt.server.app import create_app
from kt.server.generation import Generations
from kt.server.serve import Server, reserve, url_of
from tests.fakes import ASSISTANT, BOS, END, SPECIAL, USER, FakeExecutor, FakeTokenizer

MODEL = "fake-1b"
INFO = {
    "model": MODEL,
    "aliases": ["fake", "/models/fake.gguf"],
    "variant": {"value": "avx512_vnni", "reason": "the best that this CPU has"},
}


class TextTokenizer(FakeTokenizer):
    """The fake with what the server asks for beyond it: a BOS, names of special tokens, and a
    template's source.
    """

    special_ids: ClassVar[dict[str, int]] = SPECIAL

    def __init__(self, template: str = "") -> None:
        self.template = template
        self.rendered: list[dict[str, Any]] = []  # what each prompt was made from

    def encode(
        self, text: str, *, special: bool = False, add_bos: bool = True, limit: int | None = None
    ) -> list[int]:
        return [BOS, *self.ids(text, special)] if add_bos else self.ids(text, special)

    def ids(self, text: str, special: bool) -> list[int]:
        return super().encode(text, special=special)

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        names = {number: name for name, number in SPECIAL.items()}
        if skip_special or not any(id in names for id in ids):
            return super().decode(ids)
        return "".join(names.get(id) or super(TextTokenizer, self).decode([id]) for id in ids)

    def encode_chat(
        self, messages: list[dict[str, Any]], *, limit: int | None = None, **kwargs: Any
    ) -> list[int]:
        self.rendered.append({"messages": messages, **kwargs})
        ids = [BOS]
        for message in messages:
            mark = ASSISTANT if message["role"] == "assistant" else USER
            ids += [mark, *self.ids(str(message["content"]), False), END]
        return [*ids, ASSISTANT]


@dataclass
class Running:
    """A server under test. engine: its engine; http: a client; generations: what it answers."""

    url: str
    engine: Engine
    http: httpx.Client
    generations: Generations

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})

    def wait_until_idle(self, seconds: float = 5.0) -> None:
        """Fails unless the engine has nothing to do and all pages back within `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = self.engine.stats()
            if not stats.running and not stats.waiting and stats.pages_free == stats.pages_total:
                return
            time.sleep(0.01)
        pytest.fail(f"still busy: {self.engine.stats()}")


class Endings:
    """Servers that end while the next tests run: uvicorn sleeps a fifth of a second over it."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.begun: list[Future[None]] = []

    def begin(self, server: Server, thread: threading.Thread, engine: Engine) -> None:
        server.should_exit = True
        self.begun.append(self.pool.submit(self._end, thread, engine))

    def wait(self) -> None:
        """Raises what an ending raised."""
        for ending in self.begun:
            ending.result()

    @staticmethod
    def _end(thread: threading.Thread, engine: Engine) -> None:
        thread.join()
        engine.close(0.0)


ENDINGS = Endings()


@contextmanager
def running(
    executor: FakeExecutor, tokenizer: Any = None, *, max_queue: int | None = None, **options: Any
) -> Iterator[Running]:
    """One that may still be ending for a moment after the block; `ENDINGS.wait` waits for it."""
    tokenizer = tokenizer or TextTokenizer()
    with ExitStack() as stack:
        engine = Engine(
            executor, tokenizer, model_name=MODEL, max_batch=8, max_queue=max_queue
        ).start()
        app = create_app(engine, tokenizer, INFO, **options)
        listener = reserve("127.0.0.1", 0)
        ready = threading.Event()
        server = Server(app, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        stack.callback(ENDINGS.begin, server, thread, engine)
        assert ready.wait(10)
        http = stack.enter_context(httpx.Client(base_url=url_of(listener), timeout=20))
        yield Running(url_of(listener), engine, http, app.state.generations)


def events(text: str) -> list[Any]:
    """The data of each server-sent event; the text must be nothing but such events."""
    lines = text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    return [json.loads(item) if item != "[DONE]" else item for item in data]
