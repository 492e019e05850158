"""The parts of `kt chat` that a whole run does not reach: odd servers, long answers on the
screen.
"""

from __future__ import annotations

import io
import os
import re
import signal

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from kt.chat import prompt
from kt.chat.client import Measures, Refused, ServerGone, Thought, _texts
from kt.chat.loop import Loop
from kt.chat.session import Session
from kt.chat.terminal import MarkdownView, PlainView, split_blocks

STREAM = (
    b": a comment\r\n\r\n"
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\r\n\r\n'
    b'data: {"choices": [{"delta": {"content": "a\xe2\x80\xa8b"}}]}\n\n'
    b'data:{"choices": [{"delta": {"content": "\xf0\x9f\x99\x82"}, "finish_reason": "length"}]}\n\n'
    b"event: other\n"
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_cut_anywhere_gives_the_same_text(size):
    """U+2028 is a character of the text, not the end of a line."""
    measures = Measures()
    chunks = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
    assert "".join(_texts(chunks, measures)) == "a\u2028b🙂"
    assert (measures.prompt_tokens, measures.tokens) == (7, 5)
    assert measures.finish_reason == "length"


def test_a_stream_that_ends_early_is_a_server_that_left():
    heard = []
    with pytest.raises(ServerGone):
        heard.extend(_texts([STREAM[:150]], Measures()))
    with pytest.raises(ServerGone):
        list(_texts([], Measures()))


def test_an_error_in_a_stream_is_told_in_the_server_s_words():
    with pytest.raises(Refused, match="no room"):
        list(_texts([b'data: {"error": {"message": "no room"}}\n\n'], Measures()))


def test_without_usage_each_piece_counts_as_a_token():
    measures = Measures()
    piece = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    assert list(_texts([piece * 3, b"data: [DONE]\n\n"], measures)) == ["a"] * 3
    assert measures.tokens == 3


@pytest.mark.parametrize(
    ("text", "done", "rest"),
    [
        ("one", "", "one"),
        ("one\n\ntwo", "one", "two"),
        ("one\n\ntwo\n\n", "one\n\ntwo", ""),
        ("```\na\n\nb", "", "```\na\n\nb"),
        ("x\n\n```\na\n\nb", "x", "```\na\n\nb"),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```", "c"),
        ("~~~\na\n\nb\n~~~\n\nc", "~~~\na\n\nb\n~~~", "c"),
    ],
)
def test_blocks_are_finished_by_an_empty_line_outside_code(text, done, rest):
    assert split_blocks(text) == (done, rest)


def screen_lines(output: str) -> list[str]:
    """What a terminal shows, scrollback included: cursor up and erase line are all that rich's
    Live uses.
    """
    lines, row, column = [""], 0, 0
    for control, count, kind, character in re.findall(
        r"(\x1b\[\??)([0-9;]*)([A-Za-z])|(.)", output, re.DOTALL
    ):
        if control:
            if kind == "A":
                row -= int(count or 1)
            elif kind == "K":
                lines[row] = ""
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif character == "\r":
            column = 0
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + character + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def show(text: str, height: int, step: int) -> list[str]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=40, height=height, color_system=None, _environ={}
    )
    view = MarkdownView(console)
    for start in range(0, len(text), step):
        view.add(text[start : start + step])
    view.close()
    return screen_lines(file.getvalue())


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("separator", ["\n\n", "  \n"])
def test_an_answer_longer_than_the_screen_is_shown_whole_and_once(step, separator):
    words = [f"line{i}" for i in range(40)]
    shown = [line for line in show(separator.join(words), 10, step) if line]
    assert shown == words


def test_markdown_is_formatted():
    shown = show("# Head\n\nSome **bold** text.\n\n```\na = 1\n\nb = 2\n```\n\nEnd", 24, 1)
    text = "\n".join(shown)
    assert "*" not in text
    assert "`" not in text
    assert re.search(r"Head\n+Some bold text\.\n+ a = 1\n+ b = 2\n+End", text)


@pytest.mark.parametrize("colours", ["standard", "truecolor"])
def test_code_has_the_terminal_s_own_ground(colours):
    """And no colour that is invisible on one of black or of white."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system=colours, _environ={})
    before = console.get_style("markdown.code")
    view = MarkdownView(console)
    view.add("Some `x = 1`:\n\n```python\ndef f(a):\n    # note\n    return 'b'\n```\n\n")
    view.add("```\nplain\n```\n")
    view.close()
    assert "def" in screen.getvalue() and "plain" in screen.getvalue()
    for codes, text in re.findall(r"\x1b\[([0-9;]*)m([^\x1b]*)", screen.getvalue()):
        numbers = {int(code) for code in codes.split(";") if code}
        assert not numbers & {*range(40, 50), *range(100, 108), 38}, (codes, text)
        assert not text.strip() or not numbers & {30, 37, 97}, (codes, text)
    assert console.get_style("markdown.code") == before


@pytest.mark.parametrize(
    ("tokens", "decode", "rate"),
    [(51, 0.5, 100.0), (8, 0.1, 70.0), (7, 0.5, None), (40, 0.01, None), (0, 0.0, None)],
)
def test_a_rate_is_told_where_there_is_enough_to_measure(tokens, decode, rate):
    assert Measures(tokens=tokens, decode=decode).rate == pytest.approx(rate)


def test_plain_text_ends_with_one_newline():
    for text in ("a", "a\n", "[bold]a[/]\n"):
        file = io.StringIO()
        view = PlainView(Console(file=file))
        view.add(text)
        view.close()
        assert file.getvalue() == text.rstrip("\n") + "\n"


THINKING = (
    b'data: {"choices": [{"delta": {"reasoning_content": "Hm."}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "Yes."}}]}\n\n'
    b"data: [DONE]\n\n"
)


def test_a_thought_is_shown_on_a_terminal_and_is_no_answer():
    pieces = list(_texts([THINKING], Measures()))
    assert pieces == ["Hm.", "Yes."]
    assert [isinstance(piece, Thought) for piece in pieces] == [True, False]
    for terminal, make in ((True, MarkdownView), (False, PlainView)):
        screen = io.StringIO()
        view = make(Console(file=screen, force_terminal=terminal, width=60))
        for piece in pieces:
            view.add(piece)
        view.close()
        assert ("Hm." in screen.getvalue()) == terminal
        assert "Yes." in screen.getvalue()


class Server:
    """Answers like `kt run` as far as a session asks."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    def stream(self, body, measures):
        self.asked.append(body)
        yield from _texts([THINKING], measures)


def test_a_thought_is_not_sent_back():
    server = Server()
    session = Session(server, "m")
    for _ in range(2):
        list(session.ask("Sure?", Measures()))
    assert [turn["content"] for turn in server.asked[1]["messages"]] == ["Sure?", "Yes.", "Sure?"]


def test_a_signal_at_any_moment_after_enter_stops_the_answer(tmp_path, monkeypatch):
    """It comes while the line editor tidies up, or while the screen is drawn; both are no place to
    raise anything, and neither may lose it."""

    class Endless:
        where = "at http://x"
        asked = 0

        def stream(self, body, measures):
            self.asked += 1
            while True:
                yield "x"

    def editor(self, *args, **options):
        line = lines.pop(0)
        if line == "end":
            raise EOFError
        if line == "now":
            os.kill(os.getpid(), signal.SIGINT)
        return "go"

    class Screen(io.StringIO):
        def write(self, text):
            if text == "x":
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(text)

    monkeypatch.setattr(prompt.PromptSession, "prompt", editor)
    monkeypatch.setattr(prompt, "_pressed_ahead", lambda session: False)
    before = signal.getsignal(signal.SIGINT)
    client, screen, lines = Endless(), Screen(), ["now", "later", "end"]
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        read = prompt.line_reader(tmp_path, [])
        Loop(Session(client, "m"), Console(file=screen), read).run()
    assert screen.getvalue().count("stopped") == 2
    assert client.asked == 1  # the first one was stopped before it was sent
    assert signal.getsignal(signal.SIGINT) is before
