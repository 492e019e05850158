"""One document of the corpus: a conversation or plain text."""

from __future__ import annotations

from dataclasses import dataclass

START, END = "<|im_start|>", "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"

Pair = tuple[str, str]
"""A question and its answer."""


@dataclass(frozen=True)
class Document:
    """turns: (role, text) of a conversation; or `plain`, a text by itself."""

    domain: str
    turns: tuple[tuple[str, str], ...] = ()
    plain: str = ""

    def parts(self) -> list[tuple[str, bool]]:
        """The text in pieces; True marks what the model itself has to say."""
        if self.plain:
            return [(self.plain + END_OF_TEXT, True)]
        parts = []
        for role, text in self.turns:
            parts.append((f"{START}{role}\n", False))
            own = role == "assistant"
            parts.append((text + END, own))
            parts.append(("\n", False))
        return parts


def chat(domain: str, pairs: list[Pair], system: str = "") -> Document:
    """A conversation of these questions and answers."""
    turns = [("system", system)] if system else []
    for question, answer in pairs:
        turns += [("user", question), ("assistant", answer)]
    return Document(domain, tuple(turns))
