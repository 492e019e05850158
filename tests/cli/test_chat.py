"""`kt chat` as a user runs it: one question, a pipe, and a conversation on a pseudo-terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kt.chat.client import Client
from kt.cli import app
from kt.server import state
from tests import installed
from tests.cli.test_run_refusals import limit_memory
from tests.installed import PACKAGES, ROOT

KT = [*installed.KT, "chat"]
ANSWER = "Hello **world** 🙂\n\n1. one\n2. two\n"


def environment(home: Path) -> dict[str, str]:
    """One that holds what a test says, and no terminal settings of whoever runs it."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{PACKAGES}:{ROOT}",
        "HOME": str(home),
        "KT_HOME": str(home),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "http_proxy": "http://127.0.0.1:9",  # must not be used for this machine's own server
    }


def start_server(home: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.server.fake_server", str(home), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(home), cwd=ROOT
    )
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    return process


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[Path]:
    """KT_HOME of a running server that gives ANSWER to everything."""
    home = tmp_path_factory.mktemp("home")
    process = start_server(home, "--reply", ANSWER)
    yield home
    process.terminate()
    process.communicate(timeout=15)


def kt_chat(home: Path, *args: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*KT, *args], input=data, capture_output=True, env=environment(home), cwd=home, timeout=30
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def test_one_question_into_a_pipe_is_plain_text(home):
    done = kt_chat(home, "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER, "")


def test_a_piped_question(home):
    assert kt_chat(home, stdin="hi\n").stdout == ANSWER


def test_json_has_the_counts(home):
    # <bos> <user> sum up, an empty line, three lines of text, <end> <assistant>.
    done = kt_chat(home, "--json", "sum up", stdin="one\ntwo\nthree\n")
    result = json.loads(done.stdout)
    assert result["answer"] == ANSWER
    assert result["model"] == "fake-1b"
    assert result["finish_reason"] == "stop"
    assert result["prompt_tokens"] == 4 + len("sum up\n\none\ntwo\nthree")
    assert result["completion_tokens"] == len(ANSWER.encode()) + 1
    assert result["first_token_seconds"] > 0
    rate = result["tokens_per_second"]
    assert rate is None or rate <= result["completion_tokens"] / 0.1


def test_options_reach_the_server(home):
    done = kt_chat(home, "--json", "--max-tokens", "3", "--system", "abc", "hi")
    result = json.loads(done.stdout)
    assert result["answer"] == "Hel"
    assert result["finish_reason"] == "length"
    # The system turn adds its text, its mark and its end.
    assert result["prompt_tokens"] == 4 + 2 + 5
    refused = kt_chat(home, "--model", "gpt-4", "hi")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[0] == "error: unknown model 'gpt-4'"
    assert "Served here: fake-1b; without --model the newest is asked." in refused.stderr
    refused = kt_chat(home, "--url", state.read(home).url, "--model", "gpt-4", "hi")
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "error: the model 'gpt-4' is not served here; ask for 'fake-1b'",
        "Leave out --model, or give the name of the one that is served",
    ]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("tinny", 2, ["unknown model 'tinny'", "Did you mean tiny"]),
        ("/nowhere/[red]x.gguf", 4, ["no such file or folder: /nowhere/[red]x.gguf"]),
        ("", 2, ["MODEL is empty"]),
        ("owner/name", 2, ["owner/name is not downloaded yet", "kt run owner/name downloads it"]),
    ],
)
def test_a_model_that_is_not_here(tmp_path, name, status, words):
    done = kt_chat(tmp_path, "--model", name, "hi")
    assert (done.returncode, done.stdout) == (status, "")
    assert all(word in " ".join(done.stderr.split()) for word in words), done.stderr


def test_a_model_that_does_not_fit_is_not_to_be_downloaded(tmp_path, monkeypatch, capsys):
    for name in ("HF_HUB_CACHE", "KT_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "stdin", None)
    limit_memory(monkeypatch, 20 << 30)
    assert app.run(["chat", "--model", "qwen3-30b", "hi"]) == 5
    told = capsys.readouterr().err
    assert "61100000000 bytes of weights" in told and "downloads it" not in told


def test_the_server_that_runs_a_model_is_asked(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    servers = [
        start_server(
            tmp_path, "--reply", f"I am {name}", "--also", str(tmp_path / name), "--also", "c/a"
        )
        for name in ("a", "b")
    ]
    try:
        for name in ("a", "b"):
            (tmp_path / f"link-{name}").symlink_to(tmp_path / name)
            for given in (str(tmp_path / name), f"./{name}", f"./link-{name}"):
                done = kt_chat(tmp_path, "--model", given, "hi")
                assert (done.stdout, done.stderr) == (f"I am {name}\n", "")
        # They were started as c/a in folders of their own; in this one it is another model.
        (tmp_path / "c" / "a").mkdir(parents=True)
        done = kt_chat(tmp_path, "--model", "c/a", "hi")
        assert (done.returncode, done.stdout) == (4, "")
        assert "Served here: fake-1b" in done.stderr
    finally:
        for server in servers:
            server.terminate()
            server.communicate(timeout=15)


@pytest.fixture
def ask_at(tmp_path, monkeypatch, capsys):
    """ask_at(url) -> (status, stdout, stderr) of `kt chat --url URL hi` in this process."""
    for name, value in environment(tmp_path).items():
        if name != "PYTHONPATH":
            monkeypatch.setenv(name, value)

    def ask(url: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        return app.run(["chat", "--url", url, "hi"]), *capsys.readouterr()

    return ask


def test_ctrl_c_in_the_only_answer(home, ask_at, monkeypatch):
    def stopped(self, body, measures):
        yield "Hel"
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "stream", stopped)
    told = ask_at(state.read(home).url)
    assert told == (130, "Hel\n", "interrupted; the answer is not whole\n")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/health"])
def test_a_url_may_be_given(home, ask_at, suffix):
    url = state.read(home).url
    port = url.rpartition(":")[2]
    for given in (url, url.removeprefix("http://"), port):
        assert ask_at(given + suffix) == (0, ANSWER, "")


def test_a_url_may_be_given_to_the_program(home, tmp_path):
    assert kt_chat(tmp_path, "--url", state.read(home).url, "hi").stdout == ANSWER


def test_no_server_is_one_clear_message(tmp_path):
    done = kt_chat(tmp_path, "hi")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: no kt server is running here",
        "Start one in another terminal with: kt run MODEL, or ask the model inside kt: kt chat "
        "--model tiny",
    ]


def test_a_url_where_nothing_answers(tmp_path):
    done = kt_chat(tmp_path, "--url", "http://127.0.0.1:1", "hi")
    assert done.returncode == 1
    assert "no server answers at http://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[::1", "http://x:99999"])
def test_a_url_that_is_none(ask_at, url):
    status, _, err = ask_at(url)
    assert status == 2
    assert "is not a server's URL" in err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\xff\x01", "no text in UTF-8: byte 1 is 0xff"),
        (b"caf\xe9", "no text in UTF-8: byte 3 is 0xe9"),
        (b"\x7fELF\x00", "no text: it has zero bytes"),
    ],
)
def test_what_is_no_text(home, data, words):
    done = kt_chat(home, stdin=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: what is piped in is {words}" in done.stderr
    assert "`iconv -t utf-8`" in done.stderr


def test_a_question_in_several_words(home):
    asked = json.loads(kt_chat(home, "--json", "say", "hi", "now").stdout)
    assert asked["prompt_tokens"] == 4 + len("say hi now")


def test_no_question(home):
    done = kt_chat(home, stdin=" \n")
    assert done.returncode == 2
    assert "there is no question" in done.stderr


def test_a_key(tmp_path):
    server = start_server(tmp_path, "--key", "k", "--reply", "ok")
    try:
        refused = kt_chat(tmp_path, "hi")
        assert refused.returncode == 1
        assert "--api-key" in refused.stderr
        assert kt_chat(tmp_path, "--api-key", "k", "hi").stdout == "ok\n"
    finally:
        server.kill()
        server.communicate()


def test_a_server_that_dies_in_the_middle(tmp_path):
    server = start_server(tmp_path, "--latency", "0.02", "--stay")
    chat = subprocess.Popen(
        [*KT, "hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    assert chat.stdout.read(3) == b"xxx"
    server.kill()
    out, err = chat.communicate(timeout=10)
    server.communicate()
    assert chat.returncode == 1
    assert re.fullmatch(rb"x*\n", out)
    assert b"the server went away in the middle of the answer" in err
    assert b"Traceback" not in err


def test_without_any_standard_input(home):
    done = subprocess.run(
        f"{' '.join(KT)} hi <&-",
        shell=True,
        capture_output=True,
        env=environment(home),
        cwd=home,
        timeout=30,
    )
    assert (done.stdout.decode(), done.stderr) == (ANSWER, b"")


def test_a_reader_that_leaves_is_no_error(home):
    done = subprocess.run(
        f"{' '.join(KT)} hi | head -c 2",
        shell=True,
        capture_output=True,
        env=environment(home),
        cwd=home,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == (b"He", b"")


class Terminal:
    """`kt chat` on a pseudo-terminal of 80 columns."""

    def __init__(self, home: Path, *args: str) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(home)
            os.execve(KT[0], [*KT, *args], {**environment(home), "COLUMNS": "80", "LINES": "24"})
        self.pid = pid
        self.seen = ""

    def expect(self, pattern: str, seconds: float = 15) -> str:
        """Reads until `pattern` is on the screen and returns what came up to its end, without
        colours.
        """
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} is not in {self.seen!r}"
            if select.select([self.fd], [], [], left)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    pytest.fail(f"the end came before {pattern!r}: {self.seen!r}")
                text = data.decode(errors="replace")
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    def say(self, text: str) -> None:
        """Types `text` once the prompt is there; a key before that would be echoed twice."""
        self.expect("\n>")
        self.type(text)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def finish(self, seconds: float = 10) -> int:
        """The exit status, once the program has ended by itself."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        pytest.fail("it did not end")

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)


@pytest.fixture
def terminal(home) -> Iterator[Terminal]:
    terminal = Terminal(home)
    yield terminal
    terminal.close()


def test_a_conversation(home, terminal):
    assert "fake-1b at http://127.0.0.1:" in terminal.expect("/help for commands")
    terminal.say("/help\r")
    assert "/save" in terminal.expect("Ctrl-C: stop the answer")
    terminal.say("hi\r")
    # Markdown: no asterisks, a list with its numbers; then the measures.
    shown = terminal.expect(r"(\d+) tokens · ([\d.]+ tokens/s · )?first after [\d.]+ s")
    assert re.search(r"Hello world 🙂", shown)
    assert re.search(r" 1 one\s", shown)
    assert f"{len(ANSWER.encode()) + 1} tokens" in shown
    terminal.say("/save talk.json\r")
    terminal.expect("saved talk.json")
    assert json.loads((home / "talk.json").read_text()) == {
        "model": "fake-1b",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": ANSWER},
        ],
    }
    terminal.say("/save talk.json\r")
    terminal.expect("talk.json exists already")
    terminal.say("/nonsense\r")
    terminal.expect("there is no command /nonsense")
    terminal.say("/quit\r")
    assert terminal.finish() == 0


def test_system_clear_and_regenerate(home, terminal):
    terminal.say("/system be brief\r")
    terminal.expect("the system prompt is: be brief")
    terminal.say("/regenerate\r")
    terminal.expect("there is no question yet")
    terminal.say("/etc/hosts is what\r")
    terminal.expect("first after")
    terminal.say("/regenerate\r")
    terminal.expect("first after")
    terminal.say("/save a.md\r")
    terminal.expect("saved a.md")
    assert (home / "a.md").read_text() == (
        "## system\n\nbe brief\n\n## user\n\n/etc/hosts is what\n\n## assistant\n\n" + ANSWER + "\n"
    )
    terminal.say("/clear\r")
    terminal.expect("starts again")
    terminal.say("/save b.json\r")
    terminal.expect("saved b.json")
    left = json.loads((home / "b.json").read_text())["messages"]
    assert left == [{"role": "system", "content": "be brief"}]
    terminal.say("\x04")
    assert terminal.finish() == 0


def test_several_lines(home, terminal):
    terminal.say("one\\\r")
    terminal.type("two\x1b\r")
    terminal.type("three\r")
    terminal.expect("first after")
    terminal.say("/save lines.json\r")
    terminal.expect("saved lines.json")
    saved = json.loads((home / "lines.json").read_text())["messages"]
    assert saved[0]["content"] == "one\ntwo\nthree"


def test_what_was_typed_is_remembered_for_its_owner(home):
    first = Terminal(home)
    first.say("remember this\r")
    first.expect("first after")
    first.say("/quit\r")
    assert first.finish() == 0
    first.close()
    history = home / "chat_history"
    assert "remember this" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    second = Terminal(home)
    second.say("\x1b[A\x1b[A\r")  # up twice: before /quit
    second.expect("remember this")
    second.expect("first after")
    second.close()


def test_ctrl_c_stops_the_answer_and_keeps_the_session(tmp_path):
    server = start_server(tmp_path, "--latency", "0.02", "--stay")
    terminal = Terminal(tmp_path)
    try:
        terminal.say("\x03")
        terminal.expect("Ctrl-D or /quit leaves")
        terminal.say("go\r")
        terminal.expect("xxx")
        terminal.type("\x03")
        terminal.expect("stopped")
        terminal.say("/save kept.json\r")
        terminal.expect("saved kept.json")
        messages = json.loads((tmp_path / "kept.json").read_text())["messages"]
        assert [turn["role"] for turn in messages] == ["user", "assistant"]
        assert re.fullmatch("x{3,}", messages[1]["content"])
        # The server has noticed, too: the next answer begins at once.
        terminal.say("again\r")
        terminal.expect("xxx")
        server.kill()
        terminal.expect("the server went away in the middle of the answer")
        terminal.say("more\r")
        terminal.expect("no server answers at")
        terminal.say("/quit\r")
        assert terminal.finish() == 0
    finally:
        terminal.close()
        server.kill()
        server.communicate()


def test_ctrl_c_right_after_enter_stops_the_answer(tmp_path):
    server = start_server(tmp_path, "--latency", "0.02", "--stay")
    terminal = Terminal(tmp_path)
    try:
        for _ in range(3):
            terminal.say("go\r\x03")  # both are read before the terminal makes a signal of it
            terminal.expect("stopped")
        terminal.say("go\r\x03/save none.json\r")  # what comes after it is for the next prompt
        terminal.expect("stopped")
        terminal.expect("saved none.json")
        assert json.loads((tmp_path / "none.json").read_text())["messages"] == []
        terminal.say("/quit\r")
        assert terminal.finish() == 0
    finally:
        terminal.close()
        server.kill()
        server.communicate()


def test_a_signal_at_the_prompt_is_like_ctrl_c(terminal):
    terminal.expect("\n>")
    os.kill(terminal.pid, signal.SIGINT)
    terminal.expect("Ctrl-D or /quit leaves")
    terminal.say("/quit\r")
    assert terminal.finish() == 0


def test_ctrl_c_drops_a_line_that_was_begun(home, terminal):
    terminal.say("what I mis\x03hello\r")
    assert "leaves" not in terminal.expect("first after")
    terminal.say("/save begun.json\r")
    terminal.expect("saved begun.json")
    messages = json.loads((home / "begun.json").read_text())["messages"]
    assert messages[0]["content"] == "hello"


def test_ways_to_say_a_command(home, terminal):
    terminal.say("/SYSTEM be brief\r")
    terminal.expect("the system prompt is: be brief")
    terminal.say("/system\r")
    terminal.expect("no system prompt any more; it was: be brief")
    terminal.say("/system\r")
    terminal.expect("there is no system prompt")
    terminal.say("/save ''\r")
    terminal.expect("/save needs a file name")
    terminal.say('/Save "with space.json"\r')
    terminal.expect("saved with space.json")
    assert json.loads((home / "with space.json").read_text())["messages"] == []
    terminal.say("/exit\r")
    assert terminal.finish() == 0


def test_a_question_that_is_no_utf_8(home, terminal):
    terminal.expect("\n>")
    os.write(terminal.fd, b"h\xfc\r")
    terminal.expect("first after")
    terminal.say("/quit\r")
    assert terminal.finish() == 0


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("encoding", [ASCII, {"PYTHONIOENCODING": "ascii"}])
def test_outside_utf_8(home, encoding):
    def chat(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        env = {**environment(home), "LANG": "", **encoding}
        return subprocess.run([*KT, *args], input=stdin, capture_output=True, env=env, timeout=30)

    done = chat("grüß dich 🙂", "--system", "é")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == ANSWER.encode("ascii", "replace")
    as_json = json.loads(chat("--json", "grüß dich 🙂").stdout)
    assert as_json["answer"] == ANSWER
    assert as_json["prompt_tokens"] == 4 + len("grüß dich 🙂".encode())
    assert json.loads(chat("--json", stdin="grüß".encode()).stdout)["prompt_tokens"] == 4 + 6


def test_the_newest_of_several_servers_is_asked(home, tmp_path):
    older = start_server(tmp_path, "--reply", "old")
    newer = start_server(tmp_path, "--reply", "new")
    try:
        done = kt_chat(tmp_path, "hi")
        assert done.stdout == "new\n"
        urls = [server.url for server in state.living(tmp_path)]
        assert f"2 servers run here; this is fake-1b at {urls[0]}" in done.stderr
        assert f"--url {urls[1]} asks fake-1b" in done.stderr
        newer.terminate()
        newer.communicate(timeout=15)
        done = kt_chat(tmp_path, "hi")
        assert (done.stdout, done.stderr) == ("old\n", "")
    finally:
        for server in (older, newer):
            server.kill()
            server.communicate()


def test_one_question_on_a_terminal(home):
    terminal = Terminal(home, "hi")
    shown = terminal.expect("first after")
    assert "Hello world" in shown
    assert terminal.finish() == 0
    terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(home, terminal, number):
    usual = termios.tcgetattr(terminal.fd)
    terminal.say("/help\r")
    terminal.expect("Ctrl-C: stop the answer")
    terminal.expect("\n>")
    assert termios.tcgetattr(terminal.fd) != usual
    os.kill(terminal.pid, number)
    assert terminal.finish() == -number
    assert termios.tcgetattr(terminal.fd) == usual


def test_json_needs_a_question(home):
    terminal = Terminal(home, "--json")
    terminal.expect("--json needs a question")
    assert terminal.finish() == 2
    terminal.close()


def test_what_the_command_line_imports_at_first():
    """`kt --help` must stay quick."""
    heavy = {"fastapi", "uvicorn", "httpx", "prompt_toolkit", "pydantic", "torch", "transformers"}
    code = (
        "import sys, kt.cli.app, kt.cli.chat\n"
        "assert kt.cli.app.run(['--help']) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=installed.environment(),
        check=True,
    )
    assert "chat" in done.stdout
    assert not heavy & set(done.stderr.split())


def test_a_model_without_its_own_sampling_gets_a_modest_one(tmp_path):
    """The server of these tests names none, so what the client sends decides."""
    server = start_server(tmp_path, "--stay")
    try:
        result = json.loads(kt_chat(tmp_path, "--json", "hi").stdout)
    finally:
        server.terminate()
        server.wait(15)
    assert (result["completion_tokens"], result["finish_reason"]) == (2048, "length")
