"""Arithmetic, shown step by step: units, carry, tens."""

from __future__ import annotations

from random import Random

from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import say

NAMES = "Ada Ben Carla David Emma Finn Greta Hugo Ida Jonas Kira Leo Mia Noah Olga Paul".split()
THINGS = (
    "apples marbles stickers shells stamps pencils cards coins nuts buttons books flowers".split()
)

ADD = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "[Calculate|Compute|Work out] {a} + {b}.",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} =",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "[Please|Can you] add {a} and {b}",
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have?",
    "There are {a} {things} in one box and {b} in another. How many are there in all?",
)
SUBTRACT = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "[Calculate|Compute|Work out] {a} - {b}.",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} =",
    "Subtract {b} from {a}.",
    "What is the difference between {a} and {b}?",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "Take {b} away from {a}.",
    "{name} has {a} {things} and gives away {b}. How many {things} are left?",
    "There were {a} {things} in the box. {name} took {b}. How many are left?",
)
MULTIPLY = (
    "What is {a} times {b}?",
    "What is {a} x {b}?",
    "What is {a} * {b}?",
    "{a} * {b}",
    "[Calculate|Compute] {a} times {b}.",
    "Multiply {a} by {b}.",
    "How much is {a} times {b}?",
    "{name} has {a} boxes with {b} {things} each. How many {things} are there?",
)
COMPARE = (
    "Which is [larger|greater|bigger], {a} or {b}?",
    "Is {a} [larger|greater|bigger] than {b}?",
)
TOO_LARGE = "I can only add and subtract numbers below 100."


def held_out(a: int, b: int) -> bool:
    """Whether this pair of two-digit numbers is kept from training: about one in twelve.

    Both orders of a pair go together, since a + b is b + a.
    """
    low, high = min(a, b), max(a, b)
    return low >= 10 and (low * 7919 + high * 104729) % 12 == 5


def add_steps(a: int, b: int) -> str:
    """a + b column by column; both below 100.

    >>> add_steps(17, 25)
    'Units: 7 + 5 = 12, write 2, carry 1. Tens: 1 + 2 + 1 = 4. So 17 + 25 = 42.'
    """
    units = a % 10 + b % 10
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    text = f"Units: {a % 10} + {b % 10} = {units}"
    tens = a // 10 + b // 10
    if units < 10:
        text += f". Tens: {a // 10} + {b // 10} = {tens}."
    else:
        text += f", write {units % 10}, carry 1. Tens: {a // 10} + {b // 10} + 1 = {tens + 1}."
    return f"{text} So {a} + {b} = {a + b}."


def subtract_steps(a: int, b: int) -> str:
    """a - b column by column; both below 100.

    >>> subtract_steps(52, 17)
    'Units: 12 - 7 = 5, borrow 1. Tens: 5 - 1 - 1 = 3. So 52 - 17 = 35.'
    """
    if a < b:
        return f"{a} is less than {b}. {subtract_steps(b, a)} Hence {a} - {b} = -{b - a}."
    if a < 10 and b < 10:
        return f"{a} - {b} = {a - b}."
    if a % 10 >= b % 10:
        units = f"{a % 10} - {b % 10} = {a % 10 - b % 10}"
        tens = f"{a // 10} - {b // 10} = {a // 10 - b // 10}"
    else:
        units = f"{a % 10 + 10} - {b % 10} = {a % 10 + 10 - b % 10}, borrow 1"
        tens = f"{a // 10} - {b // 10} - 1 = {a // 10 - b // 10 - 1}"
    return f"Units: {units}. Tens: {tens}. So {a} - {b} = {a - b}."


def pair(rng: Random, *, test: bool) -> Pair:
    """A question and its worked answer. test: only pairs that training never shows."""
    draw = rng.random()
    if draw < 0.46:
        a, b = _operands(rng, test)
        return _ask(rng, ADD, a, b), add_steps(a, b)
    if draw < 0.80:
        a, b = _operands(rng, test)
        if a < b and rng.random() < 0.85:
            a, b = b, a
        # Nobody has fewer apples than none, so the last forms are for a >= b.
        return _ask(rng, SUBTRACT if a >= b else SUBTRACT[:-2], a, b), subtract_steps(a, b)
    if draw < 0.82:
        a, b = rng.randint(100, 999), rng.randint(2, 999)
        a, b = rng.choice(((a, b), (b, a)))
        return _ask(rng, rng.choice((ADD, SUBTRACT)), a, b), TOO_LARGE
    if draw < 0.93:
        a, b = rng.randint(1, 10), rng.randint(1, 10)
        return _ask(rng, MULTIPLY, a, b), f"{a} times {b} is {a * b}."
    return _comparison(rng, test)


def _comparison(rng: Random, test: bool) -> Pair:
    a, b = _operands(rng, test)
    if a == b:
        return _ask(rng, COMPARE[:1], a, b), f"They are equal: both are {a}."
    large, small = max(a, b), min(a, b)
    template = rng.choice(COMPARE)
    answer = f"{large} is larger than {small}."
    if template.startswith("Is"):
        answer = f"{'Yes' if a > b else 'No'}, {answer}"
    return _ask(rng, (template,), a, b), answer


def _operands(rng: Random, test: bool) -> tuple[int, int]:
    while True:
        a, b = _operand(rng, test), _operand(rng, test)
        if held_out(a, b) == test:
            return a, b


def _operand(rng: Random, test: bool) -> int:
    return rng.randint(10, 99) if test or rng.random() < 0.88 else rng.randint(0, 9)


def _ask(rng: Random, templates: tuple[str, ...], a: int, b: int) -> str:
    # The plain forms come first and are what people type most.
    few = templates[: max(1, len(templates) * 2 // 3)]
    template = rng.choice(few if rng.random() < 0.5 else templates)
    return say(rng, template, a=a, b=b, name=rng.choice(NAMES), things=rng.choice(THINGS))
