"""The command itself: help, imports, exit statuses, and what happens to failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kt as kt_package
from kt.cli import app, interrupt
from kt.errors import DoesNotFit, DownloadError, KtError, MachineError, ModelError, UsageError
from tests import installed

Run = Callable[..., tuple[int, str, str]]


def kt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `kt` in a process of its own."""
    env = installed.environment(**environment)
    command = [*installed.KT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*arguments) -> (status, stdout, stderr) of `kt` in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        return app.run(list(arguments)), *capsys.readouterr()

    return run


def test_help_lists_every_command() -> None:
    done = kt("--help")
    assert done.returncode == 0 and not done.stderr
    for name, command in app.COMMANDS.items():
        assert f" {name} " in done.stdout
        assert command.help in done.stdout


def test_version() -> None:
    assert kt("--version").stdout == "kt 0.1.0\n"


@pytest.mark.parametrize("name", ["doctor", "models", "run", "chat"])
def test_each_command_has_help(run: Run, name: str) -> None:
    status, out, _ = run(name, "--help")
    assert status == 0
    assert f"Usage: kt {name}" in out


def test_help_imports_nothing_heavy() -> None:
    """One command after the other in one process; each line names what is there by then."""
    code = (
        "import sys\nfrom kt.cli.app import run\n"
        "heavy = {'numpy', 'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'fastapi'}\n"
        "for command in ([], ['run'], ['models']):\n"
        "    status = run([*command, '--help'])\n"
        "    print('imported', command, sorted(heavy & set(sys.modules)), status)"
    )
    env = installed.environment()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith("imported")] == [
        "imported [] [] 0",
        "imported ['run'] [] 0",
        "imported ['models'] [] 0",
    ]


def test_usage_errors(run: Run) -> None:
    unknown = kt("modles")
    assert unknown.returncode == 2
    assert "Did you mean 'models'?" in unknown.stderr
    assert run("run")[0] == 2
    assert run("run", "x", "--port", "many")[0] == 2


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes `kt models` raise."""

    def set_failure(problem: BaseException) -> None:
        def fail() -> None:
            raise problem

        monkeypatch.setattr("kt.cli.models.models", fail)

    return set_failure


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (KtError, 1),
        (UsageError, 2),
        (MachineError, 3),
        (ModelError, 4),
        (DoesNotFit, 5),
        (DownloadError, 6),
    ],
)
def test_what_kt_explains(
    failing: object, capsys: pytest.CaptureFixture[str], kind: type[KtError], status: int
) -> None:
    failing(kind("the [red] thing broke", hint="mend [it]"))  # type: ignore[operator]
    assert app.run(["models"]) == status
    assert capsys.readouterr().err == "error: the [red] thing broke\nMend [it]\n"


def test_what_kt_did_not_expect(
    failing: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KT_DEBUG", raising=False)
    failing(ZeroDivisionError("by zero"))  # type: ignore[operator]
    assert app.run(["models"]) == 70
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in shown and "KT_DEBUG=1" in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("KT_DEBUG", "1")
    assert app.run(["models"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_one_line(failing: object, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyboardInterrupt())  # type: ignore[operator]
    assert app.run(["models"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_says_what_it_means(
    failing: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        with interrupt.means("nothing is whole"), interrupt.means("[half] of it stays"):
            raise KeyboardInterrupt
    failing(stop.value)  # type: ignore[operator]
    assert app.run(["models"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted; [half] of it stays\n"


def test_an_interrupt_that_an_import_turned_into_an_error(
    failing: object, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = SystemError("initialization raised an unreported exception")
    problem.__context__ = KeyboardInterrupt()
    failing(problem)  # type: ignore[operator]
    assert app.run(["models"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("module", ["kt.cli.app", "rich.console", "kt.machine.survey"])
def test_an_interrupt_while_python_imports_is_one_line(module: str) -> None:
    code = (
        "import os, signal, sys, time\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            time.sleep(30)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from kt.__main__ import main\n"
        "sys.argv[1:] = ['models']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=installed.environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_in_a_destructor_is_felt() -> None:
    code = (
        "import os, signal, sys, time\n"
        "class Doomed:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(30)\n"
        "class Late:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kt.machine.survey':\n"
        "            Doomed()\n"
        "            time.sleep(30)\n"
        "sys.meta_path.insert(0, Late())\n"
        "from kt.__main__ import main\n"
        "sys.argv[1:] = ['models']\n"
        "main()"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=installed.environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert time.monotonic() - started < 20


def test_little_is_imported_before_an_interrupt_is_one_line() -> None:
    """What Python itself imports at its start is not in kt's hands; what comes next is."""
    code = (
        "import sys\nbefore = set(sys.modules)\nimport kt.__main__\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=installed.environment())
    assert done.stdout.split() == ["__future__", "kt", "kt.__main__", "kt.errors"]


def test_a_disk_that_is_full_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*installed.KT, "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=installed.environment(),
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write: No space left on device\nFree some space")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_without_any_standard_output() -> None:
    command = f"{' '.join(installed.KT)} models >&-"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=installed.environment(), timeout=60
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("encoding", [ASCII, {"PYTHONIOENCODING": "ascii"}])
def test_what_the_encoding_lacks_is_shown_as_a_question_mark(encoding: dict[str, str]) -> None:
    done = kt("run", "./modèle.gguf", **encoding)
    assert done.returncode == 4
    assert re.fullmatch(r"error: no such file or folder: \./mod\?+le\.gguf\n.*\n", done.stderr)


@pytest.mark.parametrize("encoding", [{}, ASCII])
def test_prose_in_arguments_is_utf_8(encoding: dict[str, str]) -> None:
    code = "import sys\nfrom kt import words\nprint(ascii(words.typed(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, "héllo 🙂"],
        capture_output=True,
        text=True,
        env=installed.environment(**encoding),
    )
    assert done.stdout.strip() == ascii("héllo 🙂")


def test_help_names_no_types(run: Run) -> None:
    benches = [["bench", kind] for kind in ("model", "experts", "attention")]
    for command in (["run"], ["chat"], *benches, ["doctor"]):
        status, shown, _ = run(*command, "--help")
        assert status == 0 and "--help" in shown
        assert "{" not in shown
        assert "<bool>" not in shown and "<str>" not in shown and "<int" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "m", "--port", "abc"), "'--port': 'abc' is not a whole number."),
        (("chat", "--temperature", "hot", "q"), "'--temperature': 'hot' is not a number."),
        (("run", "m", "--max-batch", "0"), "'0': it should be greater than or equal to 1."),
    ],
)
def test_a_wrong_value_is_said_in_plain_words(
    run: Run, arguments: tuple[str, ...], words: str
) -> None:
    status, _, err = run(*arguments)
    assert status == 2
    assert words in re.sub(r"[│\s]+", " ", err)


def test_all_missing_options_are_named_at_once(run: Run) -> None:
    status, _, err = run("bench", "experts", "--hidden=64", "--top-k", "2")
    assert status == 2
    assert "kt bench experts lacks --intermediate, --experts, --format" in err


def test_a_reader_that_leaves_is_no_error() -> None:
    env = installed.environment()
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kt", "models", "--json"]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, env=env, timeout=60
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


def test_a_malformed_environment_is_named() -> None:
    done = kt("models", KT_THREADS="many")
    assert done.returncode == 2
    assert done.stderr.startswith("error: KT_THREADS='many' is not a positive whole number")


def test_processes_of_the_tests_run_the_kt_that_the_tests_import() -> None:
    command = [sys.executable, "-c", "import kt; print(kt.__file__)"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=installed.environment(), cwd="/"
    )
    assert Path(done.stdout.strip()).samefile(kt_package.__file__)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["list"], "kt models lists"),
        (["pull", "x"], "kt run MODEL downloads"),
        (["run", "-hf", "owner/name:Q4_K_M"], "kt run owner/name:QUANTISATION"),
        (["chat", "-m", "tiny", "hi"], "kt chat --model NAME"),
        (["chat", "tiny"], "kt chat --model tiny"),
        (["chat", "tiny", "say", "hi"], "kt chat --model tiny 'say hi'"),
        (["run", "tiny", "a", "--prompt", "b"], "there are two prompts"),
        (["run", "tiny", "--port", "0", "--cors", "example.org"], "'example.org' is no origin"),
        (["run", "tiny", "--port", "0", "--host", ""], "--host is empty"),
    ],
)
def test_habits_from_elsewhere(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(argv) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_prompt_may_be_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["run", "tiny", "Hello", "there"]) == 0
    named = capsys.readouterr().out
    assert app.run(["run", "tiny", "--prompt", "Hello there"]) == 0
    assert named == capsys.readouterr().out and named.strip()


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
@pytest.mark.parametrize(
    ("arguments", "status"), [(["run", "/no/such"], 4), (["run", "--none"], 2), (["models"], 0)]
)
def test_a_stderr_that_cannot_be_written_changes_no_status(
    stderr: str, arguments: list[str], status: int
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" 2>{stderr}', "sh", *installed.KT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=installed.environment(),
        timeout=60,
    )
    assert done.returncode == status
    assert ("tiny" in done.stdout) == (status == 0)


@pytest.mark.parametrize("name", ["COLUMNS", "LINES", "TERMINAL_WIDTH"])
@pytest.mark.parametrize("size", ["0", "-5", "x", "99999999999"])
def test_a_screen_that_cannot_be_is_none(name: str, size: str) -> None:
    def shown(**environ: str) -> str:
        done = subprocess.run(
            [*installed.KT, "--help"],
            capture_output=True,
            text=True,
            env=installed.environment() | environ,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert shown(**{name: size}) == shown()
