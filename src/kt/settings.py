"""Environment variables, read here and nowhere else; a malformed one is refused by name."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kt import words
from kt.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    variant: KT_VARIANT, the highest kernel variant to use. threads: KT_THREADS, worker threads.
    home: KT_HOME, folder for the state file and chat history (default: $XDG_STATE_HOME/kt).
    models: folder that downloads go to, the hub library's own (HF_HUB_CACHE, else derived from
    HF_HOME); absolute.
    hf_token: HF_TOKEN. offline: HF_HUB_OFFLINE. HF_ENDPOINT is only checked.
    debug: KT_DEBUG, tracebacks for what kt did not expect.
    """

    variant: str | None = None
    threads: int | None = None
    home: Path = Path()
    models: Path = Path()
    hf_token: str | None = None
    offline: bool = False
    debug: bool = False


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `environ` (default: the process environment). Raises UsageError."""
    env = os.environ if environ is None else environ
    _check_address(env, "HF_ENDPOINT")  # which the hub's library reads, and does not check
    user = env.get("HOME") or _home()
    state = env.get("XDG_STATE_HOME") or os.path.join(user, ".local", "state")
    cache = env.get("XDG_CACHE_HOME") or os.path.join(user, ".cache")
    hub = env.get("HF_HOME") or os.path.join(cache, "huggingface")
    return Settings(
        variant=env.get("KT_VARIANT") or None,
        threads=_positive(env, "KT_THREADS"),
        home=Path(env.get("KT_HOME") or os.path.join(state, "kt")),
        models=_folder(env.get("HF_HUB_CACHE") or os.path.join(hub, "hub")),
        hf_token=env.get("HF_TOKEN") or None,
        offline=_flag(env, "HF_HUB_OFFLINE"),
        debug=_flag(env, "KT_DEBUG"),
    )


def drop_absurd_sizes() -> None:
    """COLUMNS and the like that no screen has are taken out of the environment: libraries reserve
    memory by them, or fail.
    """
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):
        if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "1")):
            del os.environ[name]


def _home() -> str:
    """This user's folder, as the system knows it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user id without a name, as containers have
        return "/"


def _folder(text: str) -> Path:
    """With ~ and $NAME as the hub's library expands them."""
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(text))))


def _check_address(env: Mapping[str, str], name: str) -> None:
    text = env.get(name)
    if text and not (words.is_web_address(text) and text.isprintable()):
        raise UsageError(
            f"{name}={text!r} is not an address", hint="It should be like https://huggingface.co."
        )


def _positive(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise UsageError(f"{name}={text!r} is not a positive whole number")
    return int(text)


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").lower()
    if text in ("", "0", "false", "no"):
        return False
    if text in ("1", "true", "yes"):
        return True
    raise UsageError(f"{name}={text!r} is neither 1 nor 0")
