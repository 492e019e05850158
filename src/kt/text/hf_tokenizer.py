"""The tokenizer of a Hugging Face folder: tokenizer.json, its config, and the chat templates beside
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from kt.errors import ModelError
from kt.text.description import Description
from kt.weights.checkpoint import read_json
from kt.weights.files import read_bytes

_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read(folder: Path, config: Mapping[str, Any]) -> Description:
    """The tokenizer in `folder`; config: the model's. Raises ModelError."""
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    settings = _optional(folder / "tokenizer_config.json")
    special = _special_tokens(settings, _optional(folder / "special_tokens_map.json"))
    generation = _optional(folder / "generation_config.json")
    bos = tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None
    return Description(
        tokenizer=tokenizer,
        eos_ids=_eos_ids(tokenizer, special, generation, config),
        bos_id=bos,
        prefix=tuple(_prefix(tokenizer)),
        special_tokens=special,
        templates=_templates(folder, settings),
    )


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise ModelError(f"{path} does not exist", hint="Download the tokenizer's files too.")
    content = read_bytes(path)
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:
        raise ModelError(f"{path} is not a tokenizer: {error}", hint="Download it again.") from None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _special_tokens(settings: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and the like; a token is its text or an object that holds it."""
    result = {}
    for name in _NAMES:
        value = settings.get(name) or older.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            result[name] = value
    return result


def _eos_ids(
    tokenizer: tokenizers.Tokenizer, special: Mapping[str, str], *configs: Mapping[str, Any]
) -> frozenset[int]:
    """The tokenizer's own end token and those that the configs name."""
    found: list[Any] = (
        [tokenizer.token_to_id(special["eos_token"])] if "eos_token" in special else []
    )
    for config in configs:
        named = config.get("eos_token_id")
        found += named if isinstance(named, list) else [named]
    return frozenset(id_ for id_ in found if isinstance(id_, int))


def _prefix(tokenizer: tokenizers.Tokenizer) -> list[int]:
    """Ids that the post-processor puts before a text, read from its own description."""
    if tokenizer.post_processor is None:
        return []
    state = json.loads(tokenizer.post_processor.__getstate__())
    result: list[int] = []
    for step in state["processors"] if state["type"] == "Sequence" else [state]:
        if step["type"] != "TemplateProcessing":
            continue
        for piece in step["single"]:
            if "Sequence" in piece:
                break
            name = piece["SpecialToken"]["id"]
            if name not in step["special_tokens"]:
                raise ModelError(f"tokenizer.json: the post-processor names {name!r}, no token")
            result += step["special_tokens"][name]["ids"]
    return result


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. Files win over the config's, as in transformers."""
    templates = _inline_templates(settings.get("chat_template"))
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    files["default"] = folder / "chat_template.jinja"
    for name, path in files.items():
        if path.exists():
            templates[name] = read_bytes(path).decode(errors="replace")
    return templates


def _inline_templates(value: Any) -> dict[str, str]:
    """tokenizer_config.json's chat_template: one template, or a list of named ones."""
    if value is None:
        return {}
    rows = value if isinstance(value, list) else [{"name": "default", "template": value}]
    try:
        templates = {row["name"]: row["template"] for row in rows}
    except (KeyError, TypeError):
        templates = {"": None}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise ModelError("chat_template in tokenizer_config.json is neither text nor named texts")
    return templates
