"""The command itself: help, imports, exit statuses, and what happens to failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kt.cli import app
from kt.errors import DoesNotFit, DownloadError, KtError, MachineError, ModelError, UsageError

ROOT = Path(__file__).parents[2]


def kt(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `kt` in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [sys.executable, "-m", "kt", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def test_help_lists_every_command() -> None:
    done = kt("--help")
    assert done.returncode == 0 and not done.stderr
    for name, command in app.COMMANDS.items():
        assert f" {name} " in done.stdout
        assert command.help in done.stdout


def test_version() -> None:
    assert kt("--version").stdout == "kt 0.1.0\n"


@pytest.mark.parametrize("name", ["doctor", "models", "run", "chat"])
def test_each_command_has_help(name: str) -> None:
    done = kt(name, "--help")
    assert done.returncode == 0
    assert f"Usage: kt {name}" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["models", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom kt.cli.app import run\nstatus = run(sys.argv[1:])\n"
        "heavy = {'numpy', 'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)), status)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_usage_errors() -> None:
    unknown = kt("modles")
    assert unknown.returncode == 2
    assert "Did you mean 'models'?" in unknown.stderr
    assert kt("run").returncode == 2
    assert kt("run", "x", "--port", "many").returncode == 2


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
    assert capsys.readouterr().err == "error: the [red] thing broke\nmend [it]\n"


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


def test_an_interrupt_is_quiet(failing: object, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyboardInterrupt())  # type: ignore[operator]
    assert app.run(["models"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


def test_a_reader_that_leaves_is_no_error() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
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
