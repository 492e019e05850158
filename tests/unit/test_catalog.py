"""What a user may name as MODEL, and what models.toml may say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kt import catalog
from kt.errors import ModelError, UsageError

GOOD = """
[models."small-1b"]
repo = "owner/Small-1B"
family = "llama"
format = "bf16"
licence = "mit"
size_gb = 2.5
params_total = 1
"""


def test_the_shipped_file_is_valid_and_complete() -> None:
    entries = catalog.aliases()
    assert entries["qwen3-30b"].repo == "Qwen/Qwen3-30B-A3B-Instruct-2507"
    assert entries["qwen3-30b"].size_bytes == 61_100_000_000
    for entry in entries.values():
        assert entry.family and entry.format and entry.licence
        assert bool(entry.repo) != entry.packaged
        assert entry.size_bytes or entry.experts_bytes


def test_experts_are_a_part_of_the_download() -> None:
    for entry in catalog.aliases().values():
        if entry.size_bytes and entry.experts_bytes:
            assert entry.experts_bytes < entry.size_bytes


def test_experts_follow_from_the_dimensions() -> None:
    layers, experts, hidden, intermediate = 48, 128, 2048, 768
    count = layers * experts * 3 * hidden * intermediate * 2
    listed = catalog.aliases()["qwen3-30b"].experts_bytes
    assert listed == pytest.approx(count, abs=5e7)


def test_an_entry_is_read() -> None:
    entry = catalog.parse(GOOD, "x.toml")["small-1b"]
    assert (entry.name, entry.repo, entry.size_bytes) == (
        "small-1b",
        "owner/Small-1B",
        2_500_000_000,
    )
    assert (entry.params_total, entry.experts_bytes, entry.revision, entry.gated) == (
        1,
        None,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("size_gb = 2.5", ""), "size_gb or experts_gb is missing"),
        (("size_gb = 2.5", 'size_gb = "2.5"'), "size_gb = '2.5' is not a float"),
        (("size_gb = 2.5", "size_gb = -1"), "size_gb = -1 is not above 0"),
        (("size_gb = 2.5", "size_gb = true"), "size_gb = True is not a float"),
        (('licence = "mit"', ""), "licence is missing"),
        (('licence = "mit"', 'license = "mit"'), "unknown field 'license'"),
        (("owner/Small-1B", "Small-1B"), "'Small-1B' is not owner/name"),
        (('repo = "owner/Small-1B"', ""), "repo or packaged is missing"),
        (('repo = "owner/Small-1B"', 'repo = "a/b"\npackaged = "tiny"'), "or both are there"),
        (('repo = "owner/Small-1B"', 'packaged = "no"'), "this installation has no such folder"),
        (('"bf16"', '"bf61"'), "format = 'bf61'; known formats: bf16"),
        (("small-1b", "Small 1B"), "an alias is lower case"),
        (('repo = "owner', "repo = owner"), "not valid TOML"),
        (('[models."small-1b"]', "[small]"), r"must hold tables named \[models.ALIAS\]"),
    ],
)
def test_a_damaged_file_is_refused_by_field(change: tuple[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        catalog.parse(GOOD.replace(*change), "x.toml")
    assert "x.toml" in caught.value.message


def test_a_packaged_model_is_found_in_kt_itself() -> None:
    entry = catalog.resolve("tiny")
    assert entry.packaged and entry.repo is None
    assert entry.path is not None and (entry.path / "config.json").is_file()


def test_an_alias_wins_whatever_its_case() -> None:
    assert catalog.resolve("Qwen3-30B").repo == "Qwen/Qwen3-30B-A3B-Instruct-2507"


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "Tiny.Q4_0-00001-of-00003.gguf"
    file.touch()
    entry = catalog.resolve(str(file))
    assert (entry.path, entry.name, entry.repo) == (file, "Tiny.Q4_0", None)
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve(file.name).path == Path(file.name)


def test_a_folder_is_called_as_the_only_model_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve(".").name == tmp_path.name
    for part in (1, 2):
        (tmp_path / f"Tiny.Q4_0-0000{part}-of-00002.gguf").touch()
    assert catalog.resolve(".").name == catalog.resolve(str(tmp_path)).name == "Tiny.Q4_0"
    (tmp_path / "Other.gguf").touch()
    assert catalog.resolve(".").name == tmp_path.name


def test_nothing_names_no_model() -> None:
    for text in ("", "  "):
        with pytest.raises(UsageError, match="MODEL is empty"):
            catalog.resolve(text)


@pytest.mark.parametrize("host", ["https://huggingface.co", "http://www.huggingface.co", "hf.co"])
@pytest.mark.parametrize(
    ("rest", "revision", "files"),
    [
        ("", None, ""),
        ("/", None, ""),
        ("?library=x", None, ""),
        ("/tree/main", None, ""),
        ("/tree/v2", "v2", ""),
        (":Q4_K_M", None, "Q4_K_M"),
        ("/blob/main/a.Q8_0.gguf", None, "a.Q8_0.gguf"),
        ("/resolve/main/q/a.gguf?download=true", None, "q/a.gguf"),
    ],
)
def test_addresses_at_the_hub(host: str, rest: str, revision: str | None, files: str) -> None:
    entry = catalog.resolve(f"{host}/owner/Name{rest}")
    quant = rest if rest.startswith(":") else ""
    assert (entry.repo, entry.name) == ("owner/Name", f"Name{quant}")
    assert (entry.revision, entry.files) == (revision, files)


@pytest.mark.parametrize("text", ["tiny", "owner/a:Q8_0", "owner/a", "owner/a/b.Q8_0.gguf"])
def test_what_is_typed_for_an_entry(text: str) -> None:
    assert catalog.resolve(text).typed == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://example.com/owner/name", "not the address of a model at huggingface.co"),
        ("https://huggingface.co/owner", "not the address of a model"),
        ("https://huggingface.co/owner/name/blob/main/config.json", "is a single file"),
    ],
)
def test_other_addresses(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        catalog.resolve(text)


@pytest.mark.parametrize(
    "text", ["missing.gguf", "./missing", "/no/such/folder", "~/none", "a/b.gguf", "x/"]
)
def test_a_missing_path_is_called_a_path(text: str) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        catalog.resolve(text)


@pytest.mark.parametrize(
    ("text", "repo", "files", "name"),
    [
        ("owner/Name-1.5B", "owner/Name-1.5B", "", "Name-1.5B"),
        ("owner/Name-GGUF:Q4_K_M", "owner/Name-GGUF", "Q4_K_M", "Name-GGUF:Q4_K_M"),
        ("owner/Name-GGUF/name.Q8_0.gguf", "owner/Name-GGUF", "name.Q8_0.gguf", "Name-GGUF"),
    ],
)
def test_repositories(text: str, repo: str, files: str, name: str) -> None:
    entry = catalog.resolve(text)
    assert (entry.repo, entry.files, entry.name, entry.path) == (repo, files, name, None)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("qwen-30b", "qwen3-30b"), ("smolm2-135m", "smollm2-135m"), ("mixtral", "mixtral-8x7b")],
)
def test_a_typing_error_gets_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown model '{typed}'") as caught:
        catalog.resolve(typed)
    assert meant in caught.value.hint


def test_nonsense_gets_no_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        catalog.resolve("xyzzy!")
    assert "Did you mean" not in caught.value.hint
    assert "kt models" in caught.value.hint


def test_a_name_of_any_bytes_is_told_as_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"x\xff.gguf")
    path.touch()
    assert catalog.resolve(str(path)).name == "x\ufffd"


@pytest.mark.parametrize("text", ["a" * 5000, "./" + "a" * 5000, "~nobody-has-this-name/x"])
def test_names_that_cannot_be_paths(text: str) -> None:
    with pytest.raises((ModelError, UsageError)) as caught:
        catalog.resolve(text)
    assert len(caught.value.message) < 300
