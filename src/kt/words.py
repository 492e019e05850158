"""What people type or pipe in, as text."""

from __future__ import annotations

import locale
from urllib.parse import urlsplit

from kt.errors import UsageError

TEXT_HINT = "kt chat reads plain text; `iconv -t utf-8` converts text of another encoding."


def typed(text: str) -> str:
    """Prose from the command line or the keyboard. Bytes that the locale cannot read, which Python
    hides in surrogates, are taken as UTF-8, and what is not that becomes U+FFFD. Not for paths:
    they must stay as they came.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode(errors="replace")
    return text


def is_web_address(text: str) -> bool:
    """Whether `text` is http or https to some host, on a port that can be."""
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets, a port
        return False


def piped(data: bytes) -> str:
    """UTF-8 if it is that, else as the locale says. Raises UsageError for what is neither."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = _as_the_locale_says(data, error)
    if "\0" in text:
        raise UsageError("what is piped in is no text: it has zero bytes", hint=TEXT_HINT)
    return text


def _as_the_locale_says(data: bytes, problem: UnicodeDecodeError) -> str:
    encoding = locale.getpreferredencoding(False)
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise UsageError(
            f"what is piped in is no text in UTF-8: byte {problem.start} is "
            f"0x{data[problem.start]:02x}",
            hint=TEXT_HINT,
        ) from None
