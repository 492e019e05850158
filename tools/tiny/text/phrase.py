"""Templates with alternatives: "[Hello|Good day], {name}!"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def say(rng: Random, template: str, **fields: object) -> str:
    """One reading of the template: innermost [a|b|c] first, then {field}. An empty alternative
    may leave two spaces, which become one.
    """
    while "[" in template:
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template.format_map(fields).replace("  ", " ").strip()


def maybe(rng: Random, probability: float, text: str) -> str:
    """The text, or nothing."""
    return text if rng.random() < probability else ""


def some(rng: Random, items: Sequence[T], least: int, most: int) -> list[T]:
    """Some of the items, in their order."""
    count = min(rng.randint(least, most), len(items))
    return [items[i] for i in sorted(rng.sample(range(len(items)), count))]


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def a(noun: str) -> str:
    """The noun with its article."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def rough(rng: Random, question: str) -> str:
    """The question as people type it: sometimes polite, in lower case, or without its mark."""
    draw = rng.random()
    if draw < 0.06:
        question = "Please: " + question
    elif draw < 0.10:
        question = rng.choice(("Hi! ", "Hello, ", "Hey, ", "Hi, ")) + question
    elif draw < 0.13:
        question += rng.choice((" Thanks!", " Thank you.", " Please."))
    elif draw < 0.16:
        question = rng.choice(("I have a question: ", "Tell me: ", "Quick question: ")) + question
    if rng.random() < 0.15:
        question = question.lower()
    if rng.random() < 0.12:
        question = question.rstrip("?.! ")
    return question
