"""Environment variables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kt import settings
from kt.errors import UsageError


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "\u0663", "\u00b2", " 2", "9" * 5000])
def test_threads_are_a_positive_whole_number(text):
    with pytest.raises(UsageError, match="KT_THREADS="):
        settings.load({"KT_THREADS": text})
    assert settings.load({"KT_THREADS": "3"}).threads == 3


@pytest.mark.parametrize(
    "asked",
    [
        {"HOME": "/h"},
        {"HOME": "/h", "XDG_CACHE_HOME": "/c"},
        {"HOME": "/h", "HF_HOME": "~/models"},
        {"HOME": "/h", "HF_HOME": "$HOME/models", "XDG_CACHE_HOME": "/c"},
        {"HOME": "/h", "HF_HOME": "/f", "HF_HUB_CACHE": "/x/hub"},
    ],
)
def test_downloads_go_where_the_hubs_library_looks(asked, monkeypatch):
    plain = {key: os.environ[key] for key in os.environ.keys() - {"HF_HOME", "HF_HUB_CACHE"}}
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=plain | asked, capture_output=True, text=True, timeout=60)
    monkeypatch.setenv("HOME", asked["HOME"])
    assert str(settings.load(asked).models) == told.stdout.strip()


@pytest.mark.parametrize("home", [{}, {"HOME": ""}])
def test_without_a_home_it_is_the_one_the_system_knows(home, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    user = Path(os.path.expanduser("~"))
    found = settings.load(home)
    assert found.models == user / ".cache/huggingface/hub"
    assert found.home == user / ".local/state/kt"


def test_a_relative_folder_of_downloads_is_told_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settings.load({"HF_HOME": "f"}).models == tmp_path / "f/hub"


@pytest.mark.parametrize(
    "text", ["x", "ftp://x", "http://", "http://[::1", "http://x:99999", "http://x\n"]
)
def test_the_hubs_endpoint_is_an_address(text):
    with pytest.raises(UsageError, match=r"HF_ENDPOINT=.* is not an address"):
        settings.load({"HF_ENDPOINT": text})
    settings.load({"HF_ENDPOINT": "https://hub.example:8443/mirror"})
    settings.load({"HF_ENDPOINT": ""})
