"""What a user may name as MODEL: an alias of models.toml, a path, or a Hugging Face repository.

An alias stands for a repository, or for files that ship inside this package.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kt.errors import ModelError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - tomllib came with Python 3.11
    import tomli as tomllib

FORMATS = ("bf16", "fp8_block", "fp8_channel", "mxfp8", "mxfp4", "int4_group32")

_REQUIRED = {"family": str, "format": str, "licence": str}
_OPTIONAL = {
    "repo": str,
    "packaged": str,
    "revision": str,
    "gated": bool,
    "params_total": float,
    "params_active": float,
    "size_gb": float,
    "experts_gb": float,
}
HUB_HOSTS = ("huggingface.co/", "www.huggingface.co/", "hf.co/")
HOW_TO_NAME = "Give an alias (`kt models` lists them), a path, or a hub repository as owner/name."
_HUB_URL = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w.-]+))?"
    r"(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/?#]+)(?:/(?P<file>[^?#]+))?)?/?(?:[?#].*)?"
)
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHOWN = 200  # characters of a name in a message
_PACKAGE = Path(__file__).resolve().parent
_ALIAS = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True)
class Entry:
    """A model to run: either `path` on this machine, or `repo` (with `files` choosing among GGUF
    files). packaged: `path` is inside this package.

    size_bytes: whole download; experts_bytes: its routed experts; params in billions. None: not
    known. files: a quantisation name ("Q4_K_M") or a file name; empty: the repository's own
    weights.
    """

    name: str
    path: Path | None = None
    packaged: bool = False
    repo: str | None = None
    revision: str | None = None
    files: str = ""
    family: str | None = None
    format: str | None = None
    licence: str | None = None
    gated: bool = False
    params_total: float | None = None
    params_active: float | None = None
    size_bytes: int | None = None
    experts_bytes: int | None = None

    @property
    def typed(self) -> str:
        """What to type for it: an alias, a path, owner/name[:QUANT] or owner/name/FILE.gguf."""
        if self.family is not None or not self.repo:  # only aliases have a family
            return self.name if self.path is None or self.packaged else str(self.path)
        between = "/" if self.files.endswith(".gguf") else ":"
        return self.repo + (between + self.files if self.files else "")


def resolve(text: str, entries: Mapping[str, Entry] | None = None) -> Entry:
    """The entry that `text` names: alias first, then path, then owner/name[:QUANT],
    owner/name/FILE.gguf, or the address of one of these at huggingface.co (hf.co/owner/name:QUANT).

    Raises UsageError for a name that is none of these, ModelError for a path that does not exist.
    """
    if not text.strip():
        raise UsageError("MODEL is empty", hint=HOW_TO_NAME)
    known = aliases() if entries is None else entries
    alias = known.get(text.lower())
    if alias is not None:
        return alias
    if "://" in text or text.startswith(HUB_HOSTS):
        return _from_url(text)
    path = _existing(text)
    if path is not None:
        return Entry(name=_path_name(path), path=path)
    if _means_a_path(text):
        raise ModelError(
            f"no such file or folder: {text[:_SHOWN]}",
            hint="`kt models` lists the models known by name.",
        )
    entry = _repository(text)
    if entry is not None:
        return entry
    raise UsageError(f"unknown model {text[:_SHOWN]!r}", hint=_suggestion(text[:_SHOWN], known))


@lru_cache(maxsize=1)
def aliases() -> dict[str, Entry]:
    """alias -> Entry, in the order of models.toml. Raises UsageError if the file is damaged."""
    path = _models_toml()
    return parse(path.read_text(encoding="utf-8"), str(path))


def parse(text: str, source: str) -> dict[str, Entry]:
    """The entries of a models.toml. Raises UsageError that names `source`, the alias and the
    field."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from error
    tables = document.get("models")
    if not isinstance(tables, dict) or set(document) != {"models"}:
        raise UsageError(f"{source} must hold tables named [models.ALIAS] and nothing else")
    return {alias: _entry(alias, table, source) for alias, table in tables.items()}


def _entry(alias: str, table: Any, source: str) -> Entry:
    where = f"{source}: models.{alias}"
    if not _ALIAS.fullmatch(alias):
        raise UsageError(f"{where}: an alias is lower case letters, digits, '.' and '-'")
    if not isinstance(table, dict):
        raise UsageError(f"{where} is not a table")
    _check_fields(table, where)
    packaged = table.get("packaged")
    return Entry(
        name=alias,
        path=_PACKAGE / packaged if packaged else None,
        packaged=bool(packaged),
        repo=table.get("repo"),
        revision=table.get("revision") or None,
        family=table["family"],
        format=table["format"],
        licence=table["licence"],
        gated=table.get("gated", False),
        params_total=table.get("params_total"),
        params_active=table.get("params_active"),
        size_bytes=_bytes(table.get("size_gb")),
        experts_bytes=_bytes(table.get("experts_gb")),
    )


def _check_fields(table: Mapping[str, Any], where: str) -> None:
    for field, value in table.items():
        kind = _REQUIRED.get(field) or _OPTIONAL.get(field)
        if kind is None:
            known = ", ".join([*_REQUIRED, *_OPTIONAL])
            raise UsageError(f"{where}: unknown field {field!r}; known fields: {known}")
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if not value > 0:
                raise UsageError(f"{where}: {field} = {value!r} is not above 0")
        elif not isinstance(value, kind):
            raise UsageError(f"{where}: {field} = {value!r} is not a {kind.__name__}")
    for field in _REQUIRED:
        if not table.get(field):
            raise UsageError(f"{where}: {field} is missing")
    _check_place(table, where)
    if table["format"] not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"{where}: format = {table['format']!r}; known formats: {known}")
    if "size_gb" not in table and "experts_gb" not in table:
        raise UsageError(f"{where}: size_gb or experts_gb is missing")


def _check_place(table: Mapping[str, Any], where: str) -> None:
    """Where the model is: in a repository, or in a folder of this package."""
    repo, packaged = table.get("repo"), table.get("packaged")
    if (repo is None) == (packaged is None):
        raise UsageError(f"{where}: repo or packaged is missing, or both are there")
    if repo is not None and not _REPO.fullmatch(repo):
        raise UsageError(f"{where}: repo = {repo!r} is not owner/name")
    if packaged is not None and not (_PACKAGE / packaged / "config.json").is_file():
        raise UsageError(
            f"{where}: packaged = {packaged!r}, and this installation has no such folder",
            hint="Install kt again.",
        )


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * 1e9)


def _models_toml() -> Path:
    """models.toml lies in the installed package, or at the top of a source tree."""
    for path in (_PACKAGE / "models.toml", _PACKAGE.parents[1] / "models.toml"):
        if path.is_file():
            return path
    raise UsageError("models.toml is missing from this installation", hint="Install kt again.")


def _path_name(path: Path) -> str:
    """The name a local model is served under: file name without .gguf and split number, also of
    the only one in a folder; else the folder's name.
    """
    name = _without_suffix(path.resolve())
    if path.is_dir() and not os.path.exists(path / "config.json"):
        inside = {_without_suffix(file) for file in path.glob("*.gguf")}
        if len(inside) == 1:
            return inside.pop()
    return name


def _existing(text: str) -> Path | None:
    """The path that `text` is, if there is such a file or folder."""
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # too long for a name; ~ of a user that is not there
        return None


def _without_suffix(path: Path) -> str:
    """As text: a file's name can be any bytes, a model's is told in JSON."""
    name = os.fsencode(path.name).decode(errors="replace")
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", name) or name


def _from_url(text: str) -> Entry:
    """The repository, or the file in it, whose page at huggingface.co `text` is."""
    match = _HUB_URL.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text} is not the address of a model at huggingface.co", hint=HOW_TO_NAME
        )
    repo, revision, file, quant = match.group("repo", "revision", "file", "quant")
    if file and not file.endswith(".gguf"):
        raise UsageError(f"{text} is a single file", hint=f"The whole model: kt run {repo}")
    return _of_hub(repo, quant, file, None if revision == "main" else revision)


def _of_hub(repo: str, quant: str | None, file: str | None, revision: str | None = None) -> Entry:
    """quant, file: one of them at most, if not the repository's own weights."""
    name = repo.partition("/")[2] + (f":{quant}" if quant else "")
    return Entry(name=name, repo=repo, revision=revision, files=file or quant or "")


def _means_a_path(text: str) -> bool:
    looks = text.startswith((".", "/", "~")) or text.endswith("/") or text.count("/") > 2
    return looks or (text.endswith((".gguf", ".safetensors", ".json")) and text.count("/") < 2)


def _repository(text: str) -> Entry | None:
    repo, _, quant = text.partition(":")
    file = None
    if repo.count("/") == 2 and repo.endswith(".gguf") and not quant:
        repo, _, file = repo.rpartition("/")
    return _of_hub(repo, quant, file) if _REPO.fullmatch(repo) else None


def _suggestion(text: str, known: Mapping[str, Entry]) -> str:
    near = difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.5)
    starts = [alias for alias in known if alias.startswith(text.lower()) and alias not in near]
    if near or starts:
        return "Did you mean " + " or ".join([*near, *starts][:3]) + "? `kt models` lists all."
    return HOW_TO_NAME
