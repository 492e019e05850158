"""Unit conversions with whole numbers, and what the units are."""

from __future__ import annotations

from random import Random

from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import capital, say

# large unit (one, many), small unit (one, many), how many of the small make a large, largest count
CONVERSIONS = (
    ("metre", "metres", "centimetre", "centimetres", 100, 99),
    ("metre", "metres", "millimetre", "millimetres", 1000, 99),
    ("kilometre", "kilometres", "metre", "metres", 1000, 99),
    ("centimetre", "centimetres", "millimetre", "millimetres", 10, 99),
    ("kilogram", "kilograms", "gram", "grams", 1000, 99),
    ("gram", "grams", "milligram", "milligrams", 1000, 99),
    ("tonne", "tonnes", "kilogram", "kilograms", 1000, 99),
    ("litre", "litres", "millilitre", "millilitres", 1000, 99),
    ("litre", "litres", "centilitre", "centilitres", 100, 99),
    ("second", "seconds", "millisecond", "milliseconds", 1000, 99),
    ("millisecond", "milliseconds", "microsecond", "microseconds", 1000, 99),
    ("hour", "hours", "minute", "minutes", 60, 12),
    ("minute", "minutes", "second", "seconds", 60, 12),
    ("day", "days", "hour", "hours", 24, 10),
    ("week", "weeks", "day", "days", 7, 10),
    ("year", "years", "month", "months", 12, 10),
    ("century", "centuries", "year", "years", 100, 20),
    ("foot", "feet", "inch", "inches", 12, 12),
    ("yard", "yards", "foot", "feet", 3, 12),
    ("pound", "pounds", "ounce", "ounces", 16, 10),
    ("euro", "euros", "cent", "cents", 100, 99),
    ("byte", "bytes", "bit", "bits", 8, 16),
    ("kilobyte", "kilobytes", "byte", "bytes", 1000, 99),
    ("megabyte", "megabytes", "kilobyte", "kilobytes", 1000, 99),
    ("gigabyte", "gigabytes", "megabyte", "megabytes", 1000, 99),
    ("terabyte", "terabytes", "gigabyte", "gigabytes", 1000, 99),
    ("kibibyte", "kibibytes", "byte", "bytes", 1024, 8),
    ("mebibyte", "mebibytes", "kibibyte", "kibibytes", 1024, 8),
    ("gibibyte", "gibibytes", "mebibyte", "mebibytes", 1024, 8),
    ("gigahertz", "gigahertz", "megahertz", "megahertz", 1000, 12),
    ("kilowatt", "kilowatts", "watt", "watts", 1000, 99),
    ("dozen", "dozens", "piece", "pieces", 12, 10),
)

DOWN = (
    "How many {smalls} are {n} {large}?",
    "How many {smalls} are in {n} {large}?",
    "Convert {n} {large} to {smalls}.",
    "What is {n} {large} in {smalls}?",
    "{n} {large} in {smalls}",
    "Turn {n} {large} into {smalls}.",
    "Express {n} {large} in {smalls}.",
)
UP = (
    "How many {larges} are {n} {small}?",
    "Convert {n} {small} to {larges}.",
    "What is {n} {small} in {larges}?",
    "{n} {small} in {larges}",
    "Turn {n} {small} into {larges}.",
)
FACTOR = (
    "How many {smalls} are there in a {one}?",
    "How many {smalls} make one {one}?",
    "How many {smalls} are in a {one}?",
    "How many {smalls} does a {one} have?",
)

# Celsius and Fahrenheit where both are whole numbers people meet.
TEMPERATURES = tuple((c, c * 9 // 5 + 32) for c in range(-40, 105, 5))


def pair(rng: Random) -> Pair:
    """A question and its answer."""
    draw = rng.random()
    if draw < 0.08:
        return _temperature(rng)
    one, many, _, smalls, factor, most = rng.choice(CONVERSIONS)
    if draw < 0.25:
        question = say(rng, rng.choice(FACTOR), smalls=smalls, one=one)
        return question, say(
            rng, "[One|A] {one} is {factor} {smalls}.", one=one, factor=factor, smalls=smalls
        )
    n = rng.randint(1, min(most, 12) if rng.random() < 0.6 else most)
    large, total = one if n == 1 else many, n * factor
    if draw < 0.75:
        question = say(rng, rng.choice(DOWN), n=n, large=large, smalls=smalls)
        verb = "is" if n == 1 else "are"
        return question, f"1 {one} is {factor} {smalls}, so {n} {large} {verb} {total} {smalls}."
    question = say(rng, rng.choice(UP), n=total, larges=many, small=smalls)
    return question, f"{factor} {smalls} are 1 {one}, so {total} {smalls} are {n} {large}."


def _temperature(rng: Random) -> Pair:
    celsius, fahrenheit = rng.choice(TEMPERATURES)
    c, f = f"{celsius} degrees Celsius", f"{fahrenheit} degrees Fahrenheit"
    if rng.random() < 0.6:
        question = say(
            rng,
            "[Convert {c} to Fahrenheit.|What is {c} in Fahrenheit?|How warm is {c} in "
            "Fahrenheit?]",
            c=c,
        )
        return question, capital(f"{c} are {f}.")
    question = say(rng, "[Convert {f} to Celsius.|What is {f} in Celsius?]", f=f)
    return question, capital(f"{f} are {c}.")
