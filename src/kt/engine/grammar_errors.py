"""What llguidance has against a grammar, in a line: without its parser's state, its listings of the
text, and positions in texts that the client has not written.
"""

from __future__ import annotations

import re
from typing import Final

from kt.engine.request import Grammar, InvalidGrammar

_LONGEST: Final = 300
_SNIPPET: Final = 60

_POSITION: Final = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_LISTING: Final = re.compile(r"\s*\d+ \| |\s*\^+\s*$")
_REGEX: Final = re.compile(
    r"regex parse error:\n(?P<shown> {4}.*)\n(?P<marks> +\^+) *\n(?:.*\n)*?error: (?P<why>.*)"
)
_WRAPPERS: Final = ("failed to compile JSON schema: ",)
_PLACE: Final = re.compile(r"\n\s*while processing json-schema:\S*")
# What only whoever calls llguidance could do.
_ADVICE: Final = re.compile(
    r"\. Enable '\w+' option .*|[,;:]? *\(?either increase limits\..*", re.S
)


def refusal(grammar: Grammar, error: str, place: str = "") -> InvalidGrammar:
    """The field of the request that is to blame, and why; error: llguidance's words. place: in the
    field, as it follows its name.
    """
    why = reason(error, positions=grammar.kind == "lark" and not grammar.parts)
    if grammar.kind == "json_schema" and _REGEX.search(error):
        why = f"pattern: {why}"
    where = grammar.origin or f"the {_NAMES.get(grammar.kind, f'grammar ({grammar.kind})')}"
    return InvalidGrammar(f"{where}{place}: {why}", param=grammar.origin)


def refusal_later(grammar: Grammar, error: str) -> InvalidGrammar:
    """As refusal, for one that compiled and fails once an answer has begun."""
    blamed = grammar.parts[0] if len(grammar.parts) == 1 else grammar
    return refusal(blamed, f"it failed in the middle of an answer: {reason(error)}")


_NAMES: Final = {"json_schema": "JSON schema", "regex": "regular expression"}


def reason(error: str, *, positions: bool = False) -> str:
    """One line. positions: those in the text mean something to the client."""
    text = _PLACE.sub("", error.partition("\n<state>")[0])
    at = _POSITION.match(text)
    before = f"line {at[1]}, column {at[2]}: " if at and positions else ""
    text = text[at.end() :] if at else text
    for wrapper in _WRAPPERS:
        text = text.removeprefix(wrapper)
    found = _REGEX.search(text)
    if found:
        shown, marks = found["shown"], found["marks"]
        piece = shown[marks.index("^") : len(marks)]
        return f"{before}{found['why']}: {piece[:_SNIPPET]}" if piece else before + found["why"]
    lines = [line.strip() for line in text.splitlines() if not _LISTING.match(line)]
    words = _ADVICE.sub("", " ".join(filter(None, lines)))
    return before + (words if len(words) <= _LONGEST else words[:_LONGEST] + "...")
