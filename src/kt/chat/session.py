"""A conversation and what can be done to it."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kt.chat.client import Answers, Measures, Thought
from kt.errors import UsageError

Message = dict[str, str]


@dataclass
class Session:
    """The turns so far. options: request fields such as temperature that every request carries."""

    client: Answers
    model: str
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + self.turns

    def ask(self, question: str, measures: Measures) -> Generator[str, None, None]:
        """The answer to `question`, in pieces. What was heard before an interruption stays in the
        conversation; if that is nothing, the question goes too, so that it does not spoil the next
        request.
        """
        self.turns.append({"role": "user", "content": question})
        heard: list[str] = []
        body = {"model": self.model, "messages": self.messages(), **self.options}
        try:
            with closing(self.client.stream(body, measures)) as pieces:
                for text in pieces:
                    if not isinstance(text, Thought):
                        heard.append(text)
                    yield text
        finally:
            if heard:
                self.turns.append({"role": "assistant", "content": "".join(heard)})
            else:
                self.turns.pop()

    def take_back(self) -> str:
        """Removes the last question and its answer and returns the question. Raises UsageError."""
        if not self.turns:
            raise UsageError("there is no question yet")
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        raise AssertionError("an answer without a question")

    def clear(self) -> None:
        self.turns.clear()

    def save(self, path: Path) -> None:
        """Writes a new file: JSON if its name ends in .json, else Markdown. Raises UsageError."""
        if path.suffix == ".json":
            text = json.dumps(
                {"model": self.model, "messages": self.messages()}, indent=2, ensure_ascii=False
            )
        else:
            text = "\n\n".join(
                f"## {turn['role']}\n\n{turn['content']}" for turn in self.messages()
            )
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text + "\n")
        except FileExistsError:
            raise UsageError(f"{path} exists already", hint="choose another name") from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
