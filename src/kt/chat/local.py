"""The engine in this very process, for a chat without a server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kt.chat.client import Measures, Thought
from kt.engine.launch import launch, prepare
from kt.engine.request import Delta, Finished, Request, Sampling
from kt.errors import KtError
from kt.machine.survey import survey
from kt.server.profile import profile_of
from kt.server.sampling_defaults import SamplingDefaults, from_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from kt.engine.launch import Running
    from kt.server.output import Piece

_END_TOKENS = 16
"""So many of a prompt's last tokens tell whether it has opened a thought."""


class Local:
    """Answers like chat.client.Client, without a server. Close it."""

    where = "in this process"

    def __init__(self, running: Running, name: str, defaults: SamplingDefaults) -> None:
        self._running = running
        self._name = name
        self._defaults = defaults
        self._profile = profile_of(running.tokenizer.template, {})

    @classmethod
    def start(
        cls,
        name: str,
        path: Path,
        *,
        variant: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Local:
        """Loads the model for one conversation. Raises KtError."""
        prepared = prepare(path, survey(gpus=False), name=name, variant=variant, max_batch=1)
        defaults = from_checkpoint(prepared.checkpoint)
        return cls(launch(prepared, progress=progress), name, defaults)

    def close(self) -> None:
        self._running.close(0.0)

    def model(self) -> str:
        return self._name

    def names_temperature(self) -> bool:
        """Whether the model's own files say how to sample it."""
        return self._defaults.temperature is not None

    def stream(self, body: dict[str, Any], measures: Measures) -> Generator[str, None, None]:
        """As Client.stream; of `body` it takes messages, max_tokens and temperature. Raises
        KtError.
        """
        tokenizer, form = self._running.tokenizer, self._profile.reasoning
        ids = tokenizer.encode_chat(body["messages"], limit=self._running.plan.context.value)
        end = tokenizer.decode(ids[-_END_TOKENS:], skip_special=False)
        parser = self._profile.parser(None, thinking=form is not None and form.is_open(end))
        shown = tuple(mark for mark in self._profile.shown if mark in tokenizer.special_ids)
        handle = self._running.engine.submit(Request(ids, self._sampling(body), shown=shown))
        try:
            for event in handle:
                if isinstance(event, Delta):
                    pieces = parser.push(event.text)
                else:
                    pieces = parser.finish(event.reason == "stop")
                yield from _texts(pieces, measures)
                if isinstance(event, Finished):
                    _end(event, measures)
        finally:
            handle.cancel()

    def _sampling(self, body: dict[str, Any]) -> Sampling:
        """The model's own values, under those that were asked for."""
        values: dict[str, Any] = asdict(self._defaults)
        del values["reason"]
        values |= {name: body.get(name, values.get(name)) for name in ("max_tokens", "temperature")}
        return Sampling(**{name: value for name, value in values.items() if value is not None})


def _texts(pieces: list[Piece], measures: Measures) -> Generator[str, None, None]:
    from kt.server.output import Text

    for piece in pieces:
        # No tools were named, so there are no calls.
        if isinstance(piece, Text):
            measures.heard()
            yield Thought(piece.text) if piece.kind == "reasoning" else piece.text


def _end(event: Finished, measures: Measures) -> None:
    measures.tokens = event.completion_tokens
    measures.prompt_tokens = event.prompt_tokens
    measures.finish_reason = event.reason
    if event.reason not in ("stop", "length"):
        raise KtError(f"the model failed: {event.message}")
