"""Names of the files that one model is split into: m-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from kt.errors import ModelError

_PART: Final = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors)", re.DOTALL
)
_SHOWN: Final = 20


def stem(name: str) -> str | None:
    """`name` without its number and suffix, if it is that of a part."""
    match = _match(name)
    return match["stem"] if match else None


def parts(name: str) -> list[str]:
    """The names of all parts, in order, if `name` is that of one; else `name` alone."""
    match = _match(name)
    if match is None:
        return [name]
    count = match["count"]
    return [
        f"{match['stem']}-{number:05d}-of-{count}{match['suffix']}"
        for number in range(1, int(count) + 1)
    ]


def check_whole(names: Iterable[str], present: Collection[str], where: object, hint: str) -> None:
    """Raises ModelError that names what `present` lacks of the parts that `names` belong to."""
    needed = dict.fromkeys(part for name in names for part in parts(name))
    missing = [part for part in needed if part not in present]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ModelError(
            f"{where}: {len(missing)} of {len(needed)} parts missing: "
            f"{', '.join(missing[:_SHOWN])}{more}",
            hint=hint,
        )


def _match(name: str) -> re.Match[str] | None:
    match = _PART.fullmatch(name)
    return match if match and 1 <= int(match["number"]) <= int(match["count"]) else None
