"""How models mark what they think before they answer, one row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kt.errors import UsageError


@dataclass(frozen=True)
class ReasoningForm:
    """The thought stands between `opening` and `closing`, at the start of an answer. A template
    that mentions `closing` is of a model that thinks so.
    """

    name: str
    opening: str
    closing: str

    def is_open(self, prompt_end: str) -> bool:
        """Whether the prompt, by its last characters, has opened the thought itself."""
        return prompt_end.rstrip().endswith(self.opening)

    def is_closed(self, prompt_end: str) -> bool:
        """Whether the prompt ends with a closed thought: the model answers at once."""
        return prompt_end.rstrip().endswith(self.closing)


# Harmony (gpt-oss) is no row here: its channels carry all of an answer; see server/harmony.py.
REASONING_FORMS: Final = (
    ReasoningForm("think", "<think>", "</think>"),
    ReasoningForm("brackets", "[THINK]", "[/THINK]"),
    ReasoningForm("seed", "<seed:think>", "</seed:think>"),
    ReasoningForm("kimi", "◁think▷", "◁/think▷"),
)


def reasoning_form(template: str, override: str | None = None) -> ReasoningForm | None:
    """The form that `template` mentions, or the one called `override`; "none": none.

    Raises UsageError for an override that does not exist.
    """
    if override == "none":
        return None
    for form in REASONING_FORMS:
        if form.name == override or (override is None and form.closing in template):
            return form
    if override is not None:
        names = ", ".join(form.name for form in REASONING_FORMS)
        raise UsageError(f"there is no reasoning form {override!r}; there are {names}, none")
    return None
