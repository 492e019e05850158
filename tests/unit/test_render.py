"""What is printed where: results to stdout, all else to stderr, plain without a terminal."""

from __future__ import annotations

import io
import json
import logging
import re

import pytest

from kt.cli import render

Capture = pytest.CaptureFixture[str]


def test_results_are_printed_as_they_are(capsys: Capture) -> None:
    text = "[bold]not markup[/] " + "x" * 300
    render.result(text)
    assert capsys.readouterr() == (text + "\n", "")


def test_json_keeps_its_order(capsys: Capture) -> None:
    render.json({"b": 1, "a": "é"})
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["b", "a"]
    assert "é" in out and err == ""


def test_notes_and_warnings_go_to_stderr_unwrapped(capsys: Capture) -> None:
    render.note("[a] " + "word " * 50)
    render.warn("slow")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["[a] " + "word " * 49 + "word ", "warning: slow"]


def test_a_table_without_a_terminal_is_plain_aligned_lines(capsys: Capture) -> None:
    rows = [["a", "1", "[x]"], ["long name", "22", "y" * 200]]
    render.table((("NAME", "left"), ("N", "right"), ("WHY", "left")), rows, title="Title")
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == ["Title", "NAME        N  WHY", "a           1  [x]"]
    assert out[3] == "long name  22  " + "y" * 200


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_on_a_terminal_of_any_width_is_complete(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = (("NAME", "left"), ("N", "right"), ("KIND", "left"), ("WHY", "left"))
    rows = [["a" * 30, "1" * 10, "kind", "w" * 30], ["b" * 30, "2", "k" * 12, "word " * 6]]
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout", screen)
    render.table(headers, rows)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert max(map(len, shown.splitlines())) <= width
    squeezed = re.sub(r"\s", "", shown)
    for row in rows:
        for cell in row[:3] if width == 80 else row:  # at 80 pieces of two cells alternate
            assert cell.replace(" ", "") in squeezed
    assert shown.count("w") >= 30 and "…" not in squeezed


def test_a_bar_shows_nothing_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr", screen)
    with render.progress("Loading m") as update:
        update(0, 4096)
        update(4096, 4096)
    assert "?" not in re.sub(r"\x1b\[\?", "", screen.getvalue())
    assert "4.0 KiB of 4.0 KiB" in screen.getvalue()


def test_progress_without_a_terminal_is_a_few_lines(capsys: Capture) -> None:
    with render.progress("Loading m") as update:
        for done in range(0, 4097, 64):
            update(done, 4096)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == "Loading m: 4.0 KiB"
    assert lines[1].startswith("Loading m: done in ")


def test_long_jobs_say_how_far_they_are(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 31.0, 32.0, 62.0, 70.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with render.progress("Downloading m") as update:
        for done in (0, 1024, 2048, 3072):
            update(done, 6144)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "Downloading m: 6.0 KiB",
        "Downloading m: 1.0 KiB, 33 B/s, 0:02:35 left",
        "Downloading m: 3.0 KiB, 50 B/s, 0:01:02 left",
        "Downloading m: done in 70.0 s",
    ]


def test_the_log_goes_to_stderr(capsys: Capture) -> None:
    before = logging.root.handlers[:]
    logging.root.handlers.clear()
    try:
        render.log_to_stderr()
        logging.getLogger("kt.x").info("one")
        logging.getLogger("other").info("two")
        logging.getLogger("other").warning("three")
    finally:
        logging.root.handlers[:] = before
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(" ", 2)[2] for line in err.splitlines()] == [
        "INFO kt.x: one",
        "WARNING other: three",
    ]
