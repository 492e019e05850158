"""The corpus as an endless, seeded stream of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from tools.tiny.text import functions, general, machines, stories, sums, units
from tools.tiny.text.document import Document, Pair, chat
from tools.tiny.text.phrase import rough

# Shares of documents; stories are about five times as long as sums.
SHARES: Final = {
    "stories": 0.10,
    "sums": 0.32,
    "machines": 0.20,
    "functions": 0.12,
    "units": 0.12,
    "general": 0.14,
}
DOMAINS: Final = tuple(SHARES)
# At the end of the training: names and things that return many sentences later are learned last.
LAST_SHARES: Final = {**SHARES, "stories": 0.25}
SYSTEMS = (
    "You are a helpful assistant.",
    "You are tiny, a small language model.",
    "You are a friendly assistant. Answer briefly.",
    "Answer in short sentences.",
    "You are a helpful assistant that answers questions about computers.",
    "Be kind and brief.",
    "You are an assistant.",
    "Answer truthfully. Say so when you do not know something.",
)
_PLAIN = {
    "stories": stories.plain,
    "machines": machines.plain,
    "functions": functions.plain,
    "general": general.plain,
}


def documents(seed: int | str, shares: Mapping[str, float] = SHARES) -> Iterator[Document]:
    """Documents of all domains, mixed."""
    rng = Random(seed)
    while True:
        yield document(rng, rng.choices(tuple(shares), tuple(shares.values()))[0])


def document(rng: Random, domain: str, *, test: bool = False) -> Document:
    """One document of the domain, now and then with questions of other domains before it. test:
    sums only of held-out pairs.
    """
    if domain in _PLAIN and rng.random() < 0.12:
        return Document(domain, plain=_PLAIN[domain](rng))
    pairs = [question(rng, domain, test=test)]
    while rng.random() < (0.1 if domain == "stories" else 0.3) and len(pairs) < 4:
        other = domain if test or rng.random() < 0.5 else rng.choice(DOMAINS[1:])
        pairs.insert(0, question(rng, other, test=test))
    return chat(domain, pairs, rng.choice(SYSTEMS) if rng.random() < 0.2 else "")


def question(rng: Random, domain: str, *, test: bool = False) -> Pair:
    """A question of the domain and its answer."""
    match domain:
        case "sums":
            ask, answer = sums.pair(rng, test=test)
            return rough(rng, ask), answer
        case "units":
            ask, answer = units.pair(rng)
            return rough(rng, ask), answer
        case "stories":
            ask, answer = stories.pair(rng)
            # A name has to keep its capital letter.
            return ask, answer
        case "machines":
            return machines.pair(rng)
        case "functions":
            return functions.pair(rng)
        case _:
            return general.pair(rng)
