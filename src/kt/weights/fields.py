"""Reading a JSON object so that no field is overlooked: what is neither read nor known to be inert
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kt.errors import ModelError


class Fields:
    """The fields of an object called `name`. Reading one marks it as implemented.

    inert: fields that never matter.
    """

    inert: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: Mapping[str, Any], name: str = "config") -> None:
        self._config = config
        self._name = name
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The field as it is; null counts as absent."""
        self._read.add(key)
        value = self._config.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number >= least. Raises ModelError."""
        value = self._required(key, default)
        if type(value) is not int or not least <= value < 1 << 31:
            raise self.refuse(key, f"a whole number from {least} up is needed")
        return value

    def number(self, key: str, default: float | None = None, *, most: float = 1e30) -> float:
        """A positive number <= most. Raises ModelError."""
        value = self._required(key, default)
        if type(value) not in (int, float) or not 0 < value <= most:
            raise self.refuse(key, f"a positive number up to {most:g} is needed")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false. Raises ModelError."""
        value = self._required(key, default)
        if type(value) is not bool:
            raise self.refuse(key, "true or false is needed")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, one alone counts as a list; () if absent. Raises ModelError."""
        value = self.get(key, [])
        numbers = value if isinstance(value, list) else [value]
        if not all(type(number) is int for number in numbers):
            raise self.refuse(key, "whole numbers are needed")
        return tuple(numbers)

    def text(self, key: str, default: str = "") -> str:
        """A string. Raises ModelError."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string is needed")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; () if absent. Raises ModelError."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.refuse(key, "a list of strings is needed")
        return tuple(value)

    def section(self, key: str) -> dict[str, Any]:
        """An object; empty if absent. Raises ModelError."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, "an object is needed")
        return value

    def expect(self, key: str, *supported: Any) -> None:
        """Refuses a field whose value is not among `supported`; absent is fine."""
        value = self.get(key)
        if value is not None and value not in supported:
            raise self.refuse(key, f"supported: {', '.join(map(repr, supported))}")

    def refuse(self, key: str, why: str) -> ModelError:
        """The error that names a field and its value."""
        return ModelError(
            f"{self._name}: {key} = {str(self._config.get(key))[:200]} is not supported: {why}"
        )

    def finish(self) -> None:
        """Refuses fields that nobody has read. null, false and empty mean that a feature is off.
        Raises ModelError.
        """
        for key, value in self._config.items():
            off = value is None or value is False or value in ("", [], {})
            if key not in self._read and key not in self.inert and not off:
                raise self.refuse(key, "kt does not implement this field")

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise ModelError(f"{self._name} has no {key}")
        return value
