"""The entry point, of `kt` and of `python -m kt`."""

from __future__ import annotations

# The module "signal" and "typing" take long enough to import to be interrupted meanwhile.
import _signal as signal  # type: ignore[import-not-found]
import os

from kt.errors import EXIT_INTERRUPTED


def _leave(number: int, frame: object) -> None:
    # A terminal has shown ^C at the start of this line.
    os.write(2, b"\ninterrupted\n" if os.isatty(2) else b"interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def main() -> None:
    """Runs kt. Ctrl-C ends it in one line also while Python still imports, where there is nothing
    to tidy up, and while it ends.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else: nohup, say
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from kt.cli import app

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = app.main()
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
