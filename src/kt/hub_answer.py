"""What the hub says of a repository: asked for, and checked before anything is done with it.

Names, the commit and hashes become paths of this machine's cache, so all of them are checked here,
where the answer is read, and nowhere later.
"""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from kt.errors import DownloadError, KtError
from kt.hub_errors import Unreachable
from kt.transfer import RemoteFile, transport_errors

SECONDS = 60.0
"""What an answer may take in all, however busily its bytes drip."""
MOST_BYTES = 64 << 20
"""What an answer may hold; one of a repository with thousands of files has about a megabyte."""
_SILENCE = 20.0  # seconds without a byte
_SHOWN = 200  # characters of a faulty value in a message
_HINT = "A proxy or a login page may answer in its place; check the network and HF_ENDPOINT."


class _Fault(Exception):
    """What is wrong with an answer, as the rest of a sentence."""


def ask(repo: str, revision: str | None, token: str | None) -> tuple[str, dict[str, RemoteFile]]:
    """The commit and its files by name. Raises the errors of the hub's library, Unreachable for
    an answer that takes too long, DownloadError for one that no hub gives and for settings with
    which nobody can be asked.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    validate_repo_id(repo)
    explained = (
        KtError,
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        *transport_errors(),
    )
    url = f"{constants.ENDPOINT}/api/models/{repo}"
    if revision:
        url += f"/revision/{quote(revision, safe='')}"
    try:
        return _parse(_in_time(lambda: _get(url, token)))
    except _Fault as fault:
        raise DownloadError(
            f"{constants.ENDPOINT} does not answer as a hub does ({fault})", hint=_HINT
        ) from None
    except Exception as error:  # of as many classes as there are settings that can be wrong
        if isinstance(error, explained):
            raise
        raise DownloadError(
            f"the hub cannot be asked ({type(error).__name__}: {error})",
            hint="Check the proxy and the certificates that the environment names.",
        ) from error


def authorization(token: str | None) -> dict[str, str]:
    """The header for `token`, or for the one that the hub's library keeps. The library's own
    function for this asks the hub for a list and writes it to disk. Raises DownloadError.
    """
    from huggingface_hub import get_token

    try:
        token = token or get_token()
    except (OSError, UnicodeError) as error:
        raise DownloadError(
            f"the token for the hub cannot be read: {error}",
            hint="HF_HOME names the folder that it is in.",
        ) from None
    if token and not re.fullmatch("[!-~]+", token):
        raise DownloadError(
            "the token for the hub holds characters that no token has",
            hint="Set HF_TOKEN to the token alone.",
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def _parse(body: bytes) -> tuple[str, dict[str, RemoteFile]]:
    """Raises _Fault."""
    try:
        document = _object(json.loads(body), "the answer")
    except (ValueError, RecursionError):
        raise _Fault("it is not JSON") from None
    siblings = document.get("siblings")
    if not isinstance(siblings, list):
        raise _Fault("it lists no files")
    files = [_file(_object(item, "a file")) for item in siblings]
    return _hash(document.get("sha"), 40, "the commit"), {file.path: file for file in files}


def _file(item: dict[str, Any]) -> RemoteFile:
    name, size, lfs = _name(item.get("rfilename")), item.get("size"), item.get("lfs")
    if type(size) is not int or size < 0:
        raise _Fault(f"the size of {name} is {_shown(size)}")
    what = f"the hash of {name}"
    if lfs is None:
        return RemoteFile(name, size, _hash(item.get("blobId"), 40, what), None)
    sha256 = _object(lfs, f"lfs of {name}").get("sha256")
    return RemoteFile(name, size, "", _hash(sha256, 64, what))


def _get(url: str, token: str | None) -> bytes:
    """The body at `url`. Raises the errors of the hub's library, _Fault."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    asked: dict[str, Any] = {"params": {"blobs": "true"}, "headers": authorization(token)}
    with get_session().stream("GET", url, timeout=_SILENCE, **asked) as response:
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MOST_BYTES:
                raise _Fault(f"it has more than {MOST_BYTES} bytes")
        # The body has been read by us; the library takes it from a response of its own.
        said = {key: value for key, value in response.headers.items() if key.startswith("x-")}
        whole = type(response)(
            response.status_code, headers=said, content=body, request=response.request
        )
    try:
        hf_raise_for_status(whole)
    except (AttributeError, TypeError):  # its body is JSON of another kind than the hub's
        raise _Fault(f"HTTP {whole.status_code}") from None
    return body


def _in_time(call: Callable[[], bytes]) -> bytes:
    """What `call` returns or raises. A thread of its own is left behind when time is over: what
    waits for one byte after the other, of a name server or of a header, cannot be told to stop.
    """
    ended: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put(call())
        except BaseException as error:  # raised by whoever waits
            ended.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = ended.get(timeout=SECONDS)
    except queue.Empty:
        raise Unreachable(
            f"the hub has not answered in {SECONDS:g} s", hint="Try again in a while."
        ) from None
    if isinstance(result, BaseException):
        raise result
    return result


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Fault(f"{what} is {_shown(value)}, not an object")
    return value


def _name(value: Any) -> str:
    """A relative path that stays where it is put."""
    if not isinstance(value, str) or not value:
        raise _Fault(f"a file's name is {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Fault(f"a file's name is {_shown(value)}") from None
    if "\\" in value or "\0" in value or {"", ".", ".."} & set(value.split("/")):
        raise _Fault(f"a file's name, {_shown(value)}, may lead out of its folder")
    return value


def _hash(value: Any, digits: int, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        raise _Fault(f"{what} is {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
