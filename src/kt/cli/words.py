"""What people type or pipe in, as text."""

from __future__ import annotations

import locale
import os


def argument(text: str) -> str:
    """A command-line argument that is prose. Where the locale cannot read its bytes, they are taken
    as UTF-8; a path must stay as it came.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return piped(os.fsencode(text))
    return text


def piped(data: bytes) -> str:
    """UTF-8 if it is that, else as the locale says; what neither can read becomes U+FFFD."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(locale.getpreferredencoding(False), errors="replace")
