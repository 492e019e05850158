"""The entry point, of `kt` and of `python -m kt`."""

from __future__ import annotations

# The module "signal" and "typing" take long enough to import to be interrupted meanwhile.
import _signal as signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

from kt.errors import EXIT_INTERRUPTED


def _leave(number: int, frame: object) -> None:
    # A terminal has shown ^C at the start of this line.
    try:
        os.write(2, b"\ninterrupted\n" if os.isatty(2) else b"interrupted\n")
    finally:
        os._exit(EXIT_INTERRUPTED)


_ended_by: list[int] = []


def _end(number: int, frame: object) -> None:
    """Unwinds, so that terminals, servers and files are left as they should be; `main` then ends
    by the signal. A second one does at once."""
    signal.signal(number, signal.SIG_DFL)
    _ended_by.append(number)
    raise SystemExit(128 + number)


def _unraisable(problem: sys.UnraisableHookArgs) -> None:
    """Ctrl-C in a destructor or the like, where Python can raise nothing, is felt a moment later
    instead of being printed and lost."""
    if problem.exc_type is SystemExit and _ended_by:
        signal.raise_signal(_ended_by[0])
    elif problem.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_interrupt_again, (_thread.get_ident(),))
    else:
        sys.__unraisablehook__(problem)


def _interrupt_again(thread: int) -> None:
    time.sleep(0.01)
    signal.pthread_kill(thread, signal.SIGINT)


def main() -> None:
    """Runs kt. Ctrl-C ends it in one line also while Python still imports, where there is nothing
    to tidy up, and while it ends. SIGTERM and SIGHUP end it as they would any program, but tidily.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else: nohup, say
    if usual:
        signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _unraisable
    from kt.cli import app

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
        status = app.main()
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if _ended_by:
            signal.raise_signal(_ended_by[0])
    raise SystemExit(status)


if __name__ == "__main__":
    main()
