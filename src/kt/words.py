"""What people type or pipe in, as text."""

from __future__ import annotations

import locale
from urllib.parse import urlsplit


def typed(text: str) -> str:
    """Prose from the command line or the keyboard. Bytes that the locale cannot read, which Python
    hides in surrogates, are taken as UTF-8. Not for paths: they must stay as they came.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return piped(text.encode("utf-8", "surrogateescape"))
    return text


def is_web_address(text: str) -> bool:
    """Whether `text` is http or https to some host, on a port that can be."""
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets, a port
        return False


def piped(data: bytes) -> str:
    """UTF-8 if it is that, else as the locale says; what neither can read becomes U+FFFD."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(locale.getpreferredencoding(False), errors="replace")
