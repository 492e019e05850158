"""Small Python functions and questions about the language."""

from __future__ import annotations

from random import Random

from tools.tiny.text import tables
from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import rough, say

_TABLES = tables.read("functions")


def _rows(kind: str) -> list[tuple[str, ...]]:
    """What it does, name, parameters, body, remark."""
    fields = ("does", "name", "parameters", "body", "remark")
    return [tuple(row[field] for field in fields) for row in _TABLES[kind]]


FIXED, NUMBERED = _rows("fixed"), _rows("numbered")
FACTS = [(row["ask"], row["answer"]) for row in _TABLES["facts"]]
ASK = (
    "Write a [|Python |small Python ]function that {does}.",
    "Write a Python function that {does}.",
    "[How do I write|Can you write|Please write|Give me|Show me] a [|Python ]function that {does}",
    "I need a [|Python ]function that {does}.",
    "Python function that {does}",
    "Define a function that {does} in Python.",
    "In Python, write a function that {does}.",
    "Code a function that {does}.",
)


def pair(rng: Random) -> Pair:
    """A wish for a function and the function."""
    if rng.random() < 0.15:
        asks, answer = rng.choice(FACTS)
        return rough(rng, rng.choice(asks)), answer
    does, code, remark = _function(rng, doc=rng.random() < 0.08)
    answer = f"```python\n{code}\n```"
    if rng.random() < 0.8:
        answer += f"\n\n{remark}"
    return rough(rng, say(rng, rng.choice(ASK), does=does)), answer


def plain(rng: Random) -> str:
    """A small module: a few functions with docstrings."""
    return "\n\n\n".join(_function(rng, doc=True)[1] for _ in range(rng.randint(2, 4)))


def _function(rng: Random, *, doc: bool) -> tuple[str, str, str]:
    """What it does, its code and a remark."""
    if rng.random() < 0.7:
        does, name, parameters, body, remark = rng.choice(FIXED)
    else:
        n = rng.randint(2, 20)
        does, name, parameters, body, remark = (
            part.replace("{n}", str(n)) for part in rng.choice(NUMBERED)
        )
    lines = [f"def {name}({parameters}):"]
    if doc:
        lines.append(f'    """{_imperative(does)}."""')
    lines += ["    " + line for line in body.splitlines()]
    return does, "\n".join(lines), remark


def _imperative(does: str) -> str:
    """ "adds two numbers" -> "Add two numbers"."""
    verb, _, rest = does.partition(" ")
    if verb.endswith(("ches", "shes")):
        verb = verb[:-2]
    elif verb.endswith("s"):
        verb = verb[:-1]
    return f"{verb.capitalize()} {rest}".strip()
