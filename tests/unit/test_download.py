"""Downloads against a hub on loopback: what is fetched, resumed, refused, and never used
unverified."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from kt import download, hub_answer, transfer
from kt.catalog import Entry
from kt.errors import DownloadError, ModelError, UsageError
from tests.hub import Hub, Repo

WEIGHTS = random.Random(1).randbytes(3_000_000)
CONFIG = b'{"model_type": "llama"}'
MODEL = Entry(name="m", repo="owner/model")


def gguf_repo() -> Repo:
    return Repo(
        {
            "README.md": b"read me",
            "m-Q4_0.gguf": b"4" * 2000,
            "m-Q8_0-00001-of-00002.gguf": b"8" * 2000,
            "m-Q8_0-00002-of-00002.gguf": b"9" * 2000,
            "mmproj-m-f16.gguf": b"p" * 2000,
        }
    )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {
        "owner/model": Repo(
            {"config.json": CONFIG, "model.safetensors": WEIGHTS, "x.bin": b"p" * 9}
        ),
        "owner/gguf": gguf_repo(),
    }
    with Hub(repos) as hub:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", hub.url)
        monkeypatch.setattr(transfer, "RETRY_SECONDS", 0.001)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


def blobs(tmp_path: Path, repo: str = "owner--model") -> list[str]:
    return sorted(p.name for p in (tmp_path / "hub" / f"models--{repo}" / "blobs").iterdir())


def test_fetches_only_what_a_model_needs(hub: Hub) -> None:
    folder = download.fetch(MODEL)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "config.json").read_bytes() == CONFIG
    assert hub.sent("x.bin") == []


def test_the_hub_library_finds_the_files_in_its_own_cache(hub: Hub) -> None:
    from huggingface_hub import try_to_load_from_cache

    folder = download.fetch(MODEL)
    found = try_to_load_from_cache(
        "owner/model", "model.safetensors", cache_dir=os.environ["HF_HUB_CACHE"]
    )
    assert found == str(folder / "model.safetensors")


def test_progress_ends_at_the_total(hub: Hub) -> None:
    seen: list[tuple[int, int]] = []
    download.fetch(MODEL, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(WEIGHTS), len(WEIGHTS))


def test_a_second_run_fetches_and_hashes_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    download.fetch(MODEL)
    monkeypatch.setattr(download, "has_hash", lambda *_: pytest.fail("hashed again"))
    download.fetch(MODEL)
    assert hub.sent("model.safetensors") == [len(WEIGHTS)]


def test_a_dropped_connection_resumes_within_the_run(hub: Hub) -> None:
    cut = len(WEIGHTS) * 4 // 10
    hub.repos["owner/model"].cuts = [cut]
    folder = download.fetch(MODEL)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.sent("model.safetensors") == [cut, len(WEIGHTS) - cut]


def test_a_run_that_died_resumes_in_the_next(hub: Hub, tmp_path: Path) -> None:
    cut = len(WEIGHTS) * 4 // 10
    hub.repos["owner/model"].cuts = [cut, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match=f"{cut} of {len(WEIGHTS)} bytes"):
        download.fetch(MODEL)
    assert not list((tmp_path / "hub").rglob("model.safetensors"))
    assert hub.sent("model.safetensors") == [cut, 0, 0, 0, 0, 0]
    hub.requests.clear()
    folder = download.fetch(MODEL)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.sent("model.safetensors") == [len(WEIGHTS) - cut]
    assert not [name for name in blobs(tmp_path) if name.endswith(".incomplete")]


def test_a_server_without_ranges_sends_it_all_again(hub: Hub) -> None:
    repo = hub.repos["owner/model"]
    repo.ignore_range, repo.cuts = True, [1_000_000]
    seen: list[int] = []
    folder = download.fetch(MODEL, progress=lambda done, total: seen.append(done))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert seen[-1] == len(WEIGHTS)


def test_a_changed_remote_file_starts_again(hub: Hub, tmp_path: Path) -> None:
    repo = hub.repos["owner/model"]
    repo.cuts = [1_200_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        download.fetch(MODEL)
    changed = random.Random(2).randbytes(2_000_000)
    repo.files["model.safetensors"] = changed
    hub.requests.clear()
    folder = download.fetch(MODEL)
    assert (folder / "model.safetensors").read_bytes() == changed
    assert hub.sent("model.safetensors") == [len(changed)]
    assert not [name for name in blobs(tmp_path) if name.endswith(".incomplete")]


@pytest.mark.parametrize("damage", [b"", WEIGHTS[:1000], bytes(len(WEIGHTS))])
def test_a_damaged_cached_file_is_found_and_fetched_again(hub: Hub, damage: bytes) -> None:
    path = download.fetch(MODEL) / "model.safetensors"
    before = path.stat().st_mtime_ns
    path.resolve().write_bytes(damage)
    os.utime(path.resolve(), ns=(before + 1, before + 1))
    assert (download.fetch(MODEL) / "model.safetensors").read_bytes() == WEIGHTS


def test_damaged_files_of_other_programs_are_found(hub: Hub, tmp_path: Path) -> None:
    folder = download.fetch(MODEL)
    (folder / "model.safetensors").resolve().write_bytes(bytes(len(WEIGHTS)))
    (tmp_path / "hub" / "models--owner--model" / download.VERIFIED).unlink()
    assert (download.fetch(MODEL) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_damaged_partial_file_is_not_built_upon(hub: Hub) -> None:
    repo = hub.repos["owner/model"]
    repo.cuts = [1_200_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        download.fetch(MODEL)
    partial = next(Path(os.environ["HF_HUB_CACHE"]).rglob("*.incomplete"))
    partial.write_bytes(bytes(1_200_000))
    assert (download.fetch(MODEL) / "model.safetensors").read_bytes() == WEIGHTS


def test_wrong_bytes_are_never_used(hub: Hub, tmp_path: Path) -> None:
    hub.repos["owner/model"].lies["model.safetensors"] = WEIGHTS[:-1] + b"!"
    with pytest.raises(DownloadError, match="arrived damaged"):
        download.fetch(MODEL)
    assert not list((tmp_path / "hub").rglob("model.safetensors"))
    assert not [name for name in blobs(tmp_path) if name.endswith(".incomplete")]


def test_a_quantisation_is_chosen_by_name(hub: Hub) -> None:
    path = download.fetch(Entry(name="g", repo="owner/gguf", files="q8_0"))
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert (path.parent / "m-Q8_0-00002-of-00002.gguf").read_bytes() == b"9" * 2000
    assert hub.sent("m-Q4_0.gguf") == []
    assert (
        download.fetch(Entry(name="g", repo="owner/gguf", files="m-Q4_0.gguf")).name
        == "m-Q4_0.gguf"
    )


@pytest.mark.parametrize("files", ["", "Q5_K"])
def test_an_unclear_choice_lists_the_files(hub: Hub, files: str) -> None:
    with pytest.raises(UsageError) as caught:
        download.fetch(Entry(name="g", repo="owner/gguf", files=files))
    assert "m-Q4_0.gguf  2.0 KiB" in caught.value.hint
    assert "m-Q8_0.gguf  3.9 KiB" in caught.value.hint
    assert "mmproj" not in caught.value.hint


@pytest.mark.parametrize(
    ("here", "missing"),
    [
        (
            ["x-00001-of-00003.gguf", "x-00003-of-00003.gguf"],
            "1 of 3 parts missing: x-00002-of-00003.gguf",
        ),
        (
            ["config.json", "model-00001-of-00003.safetensors"],
            "2 of 3 parts missing: "
            "model-00002-of-00003.safetensors, model-00003-of-00003.safetensors",
        ),
    ],
)
def test_missing_parts_are_known_before_the_download(
    hub: Hub, here: list[str], missing: str
) -> None:
    hub.repos["owner/model"].files = {name: bytes(2000) for name in here}
    for ask in (download.preview, download.fetch):
        with pytest.raises(ModelError, match=f"owner/model: {missing}"):
            ask(MODEL)
    assert not any(hub.sent(name) for name in here if name != "config.json")


@pytest.mark.parametrize("index", [b"[" * 200_000, b'{"weight_map": {"a": 5}}', b"{}"])
def test_an_index_that_names_nothing(hub: Hub, index: bytes) -> None:
    hub.repos["owner/model"].files["model.safetensors.index.json"] = index
    for ask in (download.preview, download.fetch):
        with pytest.raises(ModelError, match=r"index\.json cannot be read|index names: 5"):
            ask(MODEL)


def test_several_safetensors_without_an_index_are_not_downloaded(hub: Hub) -> None:
    hub.repos["owner/model"].files = {f"{name}.safetensors": bytes(2000) for name in "ab"}
    for ask in (download.preview, download.fetch):
        with pytest.raises(ModelError, match="has 2 safetensors files and no model"):
            ask(MODEL)
    assert hub.sent("a.safetensors") == []


def test_an_index_decides_which_safetensors(hub: Hub) -> None:
    index = {"weight_map": {"a": "model-1.safetensors"}}
    hub.repos["owner/sharded"] = Repo(
        {
            "config.json": CONFIG,
            "model.safetensors.index.json": json.dumps(index).encode(),
            "model-1.safetensors": b"1" * 2000,
            "consolidated.safetensors": b"c" * 2000,
        }
    )
    folder = download.fetch(Entry(name="s", repo="owner/sharded"))
    assert (folder / "model-1.safetensors").read_bytes() == b"1" * 2000
    assert not (folder / "consolidated.safetensors").exists()
    hub.repos["owner/sharded"].files.pop("model-1.safetensors")
    with pytest.raises(ModelError, match=r"lacks files that its index names: model-1\.safetensors"):
        download.fetch(Entry(name="s", repo="owner/sharded"))


def test_weights_that_are_not_admitted_are_not_fetched(hub: Hub) -> None:
    def admit(size: int) -> None:
        assert size == len(WEIGHTS)
        raise DownloadError("too large")

    with pytest.raises(DownloadError, match="too large"):
        download.fetch(MODEL, admit=admit)
    assert hub.sent("model.safetensors") == []


def test_a_full_disk_is_refused_before_the_download(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(DownloadError, match=rf"needs {len(WEIGHTS)} bytes more.*1000000 free"):
        download.fetch(MODEL)
    assert hub.sent("model.safetensors") == []


def test_unknown_gated_and_unreachable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadError, match="no repository owner/none"):
        download.fetch(Entry(name="n", repo="owner/none"))
    with pytest.raises(DownloadError, match="no revision v9"):
        download.fetch(Entry(name="n", repo="owner/model", revision="v9"))
    hub.repos["owner/model"].gated = True
    with pytest.raises(DownloadError, match="gated") as caught:
        download.fetch(MODEL)
    assert f"{hub.url}/owner/model" in caught.value.hint
    assert download.fetch(MODEL, token="secret").is_dir()


def test_offline_uses_a_complete_cache_and_nothing_less(hub: Hub) -> None:
    with pytest.raises(
        DownloadError, match=r"HF_HUB_OFFLINE is set, and owner/model is not in the cache"
    ):
        download.fetch(MODEL, offline=True)
    assert not download.is_cached(MODEL)
    folder = download.fetch(MODEL)
    hub.requests.clear()
    assert download.fetch(MODEL, offline=True) == folder
    assert download.is_cached(MODEL)
    assert hub.requests == []
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError):
        download.fetch(MODEL, offline=True)


def test_a_hub_that_does_not_answer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = download.fetch(MODEL)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    warnings: list[str] = []
    assert download.fetch(MODEL, warn=warnings.append) == folder
    assert "cannot reach the hub" in warnings[0]
    with pytest.raises(DownloadError, match="cannot reach the hub"):
        download.fetch(Entry(name="g", repo="owner/gguf"))


def test_a_token_stays_with_the_hub(hub: Hub) -> None:
    repo = hub.repos["owner/model"]
    repo.gated = repo.cdn = True
    repo.cuts = [1_000_000]
    folder = download.fetch(MODEL, token="secret")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    served = [request for request in hub.requests if request.path.startswith("/cdn/")]
    assert [request.range for request in served[-2:]] == [None, "bytes=1000000-"]
    for request in hub.requests:
        expected = None if request.path.startswith("/cdn/") else "Bearer secret"
        assert request.authorization == expected


def test_one_bad_shard_of_many(hub: Hub) -> None:
    names = [f"model-{i}.safetensors" for i in range(6)]
    index = {"weight_map": {name: name for name in names}}
    files = {name: name.encode() * 200 for name in names}
    files |= {"config.json": CONFIG, "model.safetensors.index.json": json.dumps(index).encode()}
    entry = Entry(name="s", repo="owner/sharded")
    repo = hub.repos["owner/sharded"] = Repo(files, lies={names[3]: b"?" * 3800})
    with pytest.raises(DownloadError, match=f"{names[3]} arrived damaged"):
        download.fetch(entry)
    assert not download.is_cached(entry)
    repo.lies.clear()
    hub.requests.clear()
    folder = download.fetch(entry)
    assert all((folder / name).read_bytes() == files[name] for name in names)
    assert hub.sent(names[3]) == [len(files[names[3]])]
    assert hub.sent(names[0]) == []


def test_a_cache_that_cannot_be_made_is_said_as_such(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place, words in (("/proc/nope/hub", "No such file"), (tmp_path / "file", "Not a dir")):
        monkeypatch.setenv("HF_HUB_CACHE", str(place))
        with pytest.raises(DownloadError, match=f"cannot write to {place}.*: {words}"):
            download.fetch(MODEL)


@pytest.mark.parametrize("call", ["mkdir", "write_text", "symlink_to"])
def test_a_disk_that_is_full_already_is_said_as_such(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, call, full)
    monkeypatch.setattr(download.shutil, "copy2", full)
    with pytest.raises(DownloadError, match="the disk is full"):
        download.fetch(MODEL)


def changed(place: str, value: object) -> Callable[[Any], Any]:
    """Of what the hub says, the field at `place` ("siblings.0.size")."""

    def change(info: Any) -> Any:
        at, (*path, last) = info, place.split(".")
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        at[last] = value
        return info

    return change


@pytest.mark.parametrize(
    "tells",
    [
        lambda info: b"<html>Log in here</html>",
        lambda info: b"",
        lambda info: b"[" * 200_000,
        lambda info: [1, 2],
        lambda info: None,
        lambda info: {},
        changed("sha", "../../../outside"),
        changed("sha", None),
        changed("siblings", ["x"]),
        changed("siblings", [{}]),
        changed("siblings.0.rfilename", 5),
        changed("siblings.0.rfilename", "../../outside.gguf"),
        changed("siblings.0.rfilename", "a/../../../outside.gguf"),
        changed("siblings.0.rfilename", "/tmp/outside.gguf"),
        changed("siblings.0.rfilename", ""),
        changed("siblings.0.rfilename", "..\\outside.gguf"),
        changed("siblings.0.rfilename", "m\0.gguf"),
        changed("siblings.0.rfilename", "m\udcff.gguf"),
        changed("siblings.0.blobId", "../outside"),
        changed("siblings.0.blobId", None),
        changed("siblings.0.size", "12"),
        changed("siblings.0.size", None),
        changed("siblings.0.size", -5),
        changed("siblings.0.size", 1.5),
        changed("siblings.1.lfs", {"size": 1}),
        changed("siblings.1.lfs", "x"),
        changed("siblings.1.lfs.sha256", "VICTIM"),
        changed("siblings.1.lfs.sha256", "../../VICTIM"),
    ],
)
def test_what_no_hub_says(hub: Hub, tmp_path: Path, tells: Callable[[Any], Any]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")

    def aimed(info: Any) -> Any:
        told = tells(info)
        if isinstance(told, bytes):
            return told
        return json.loads(json.dumps(told).replace("VICTIM", str(victim)))

    hub.repos["owner/model"].tells = aimed
    for ask in (download.preview, download.fetch):
        with pytest.raises(DownloadError, match="does not answer as a hub does") as caught:
            ask(MODEL)
        assert "HF_ENDPOINT" in caught.value.hint
    assert victim.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path != victim] == []
    assert {request.path for request in hub.requests} == {"/api/models/owner/model"}


def test_an_answer_without_end(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["owner/model"].tells = lambda info: b" " * 100_000
    monkeypatch.setattr(hub_answer, "MOST_BYTES", 50_000)
    with pytest.raises(DownloadError, match="it has more than 50000 bytes"):
        download.preview(MODEL)


def test_a_hub_that_drips(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["owner/model"].drip = 0.2
    monkeypatch.setattr(hub_answer, "SECONDS", 0.5)
    with pytest.raises(DownloadError, match=r"the hub has not answered in 0\.5 s"):
        download.preview(MODEL)


def test_settings_with_which_nobody_can_be_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://a\x07")
    with pytest.raises(DownloadError, match="the hub cannot be asked") as caught:
        download.preview(MODEL)
    assert "proxy" in caught.value.hint


def test_a_token_that_is_none(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("caf\xe9", "two words", "two\nlines"):
        with pytest.raises(DownloadError, match="holds characters that no token has"):
            download.preview(MODEL, token=token)
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "file" / "token"))
    with pytest.raises(DownloadError, match="token for the hub cannot be read"):
        download.preview(MODEL)
