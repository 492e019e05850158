"""The hub library's errors, in words of what happened and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kt.errors import DownloadError
from kt.transfer import transport_errors

if TYPE_CHECKING:
    from kt.catalog import Entry


class Unreachable(DownloadError):
    """No answer from the hub, or none that says anything about the model."""


@contextmanager
def explained(entry: Entry) -> Iterator[None]:
    """The hub library's errors in words of what to do about them."""
    from huggingface_hub import errors

    transport: tuple[type[BaseException], ...] = (errors.OfflineModeIsEnabled, *transport_errors())
    try:
        yield
    except errors.GatedRepoError as error:
        from huggingface_hub import constants

        raise DownloadError(
            f"{entry.repo} is gated: its owner wants you to accept the licence first",
            hint=f"Accept it at {constants.ENDPOINT}/{entry.repo}, "
            "then set HF_TOKEN to a token of that account.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"the hub has no repository {entry.repo}, or it is private",
            hint="Check the spelling; for a private repository set HF_TOKEN.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadError(f"{entry.repo} has no revision {entry.revision}") from error
    except errors.HFValidationError as error:
        raise DownloadError(f"{entry.repo} is not a repository name: {error}") from error
    except errors.HfHubHTTPError as error:
        raise _http_error(entry, error) from error
    except transport as error:
        detail = str(error) or type(error).__name__
        raise Unreachable(
            f"cannot reach the hub ({detail})", hint="Check the network, or HF_ENDPOINT."
        ) from error


def _http_error(entry: Entry, error: Any) -> DownloadError:
    status = error.response.status_code
    if status in (401, 403):
        return DownloadError(
            f"the hub refuses access to {entry.repo} (HTTP {status})",
            hint="HF_TOKEN is missing, expired, or has no right to read this repository.",
        )
    if status >= 500 or status == 429:
        return Unreachable(f"the hub answers HTTP {status}", hint="Try again in a while.")
    return DownloadError(
        f"the hub answers HTTP {status} for {entry.repo}: "
        f"{error.server_message or 'no reason given'}"
    )
