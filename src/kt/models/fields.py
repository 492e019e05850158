"""Reading a config.json so that no field is overlooked: what is neither read nor known to be inert
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kt.errors import ModelError

# Fields that do not change what a forward pass computes: bookkeeping, training, generation
# defaults, ids.
INERT: Final = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bad_words_ids",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "max_length",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
        "use_return_dict",
    }
)


class Fields:
    """The fields of a config, or of a part of it called `name`. Reading one marks it as
    implemented.
    """

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

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number. Raises ModelError."""
        value = self._required(key, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self.refuse(key, "a positive number is needed")
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
            if key not in self._read and key not in INERT and not off:
                raise self.refuse(key, "kt does not implement this field")

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise ModelError(f"{self._name} has no {key}")
        return value
