"""How a model's makers want it sampled: generation_config.json, or a GGUF's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from kt.errors import ModelError

if TYPE_CHECKING:
    from kt.weights.checkpoint import Checkpoint

_GGUF: Final = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
_RANGES: Final = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0, 1 << 20),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


@dataclass(frozen=True)
class SamplingDefaults:
    """Values for requests that give none; None: the API's own default. reason: where they are
    from.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    reason: str = "the model's files name none"

    def described(self) -> dict[str, Any]:
        """For /health: the values that are set, and why."""
        values = {k: v for k, v in asdict(self).items() if k != "reason" and v is not None}
        return {"value": values, "reason": self.reason}


def from_checkpoint(checkpoint: Checkpoint) -> SamplingDefaults:
    """What the files of `checkpoint` say. A value outside the API's range is left out."""
    if checkpoint.gguf_metadata is not None:
        metadata = checkpoint.gguf_metadata
        return _defaults({name: metadata.get(key) for name, key in _GGUF.items()}, "the GGUF")
    from kt.weights.checkpoint import read_json

    path = checkpoint.folder / "generation_config.json"
    try:
        values = read_json(path) if path.exists() else {}
    except ModelError:
        values = {}
    return _defaults(values, path.name)


def _defaults(values: Mapping[str, Any], source: str) -> SamplingDefaults:
    found: dict[str, Any] = {}
    for field in fields(SamplingDefaults):
        value, bounds = values.get(field.name), _RANGES.get(field.name)
        if bounds is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if bounds[0] <= value <= bounds[1]:
            found[field.name] = int(value) if field.name == "top_k" else float(value)
    return SamplingDefaults(**found, reason=f"{source} says so") if found else SamplingDefaults()
