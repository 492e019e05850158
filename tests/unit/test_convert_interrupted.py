"""Conversions that are killed, run out of disk or memory: nothing half-written is used, and the
same command finishes them with the same bytes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from kt.convert.convert import Conversion
from kt.errors import KtError, ModelError
from kt.kernels.library import load
from kt.weights.checkpoint import open_checkpoint
from kt.weights.packed_folder import MANIFEST
from tests.tiny import tiny_qwen3_moe

LAYERS = 6

# Converts argv[1] into argv[2] and prints by how much the peak of anonymous memory and that of all
# memory, mapped files included, are above what was there before.
SCRIPT = """
import resource, sys
from pathlib import Path
from kt.convert.convert import Conversion
from kt.errors import KtError
from kt.kernels.library import load
from kt.weights.checkpoint import open_checkpoint

def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(status.partition(field + ":")[2].split()[0]) * 1024

limit = int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
conversion = Conversion(open_checkpoint(Path(sys.argv[1])), sys.argv[4])
library = load("avx2")
before, most = memory("RssAnon"), memory("VmHWM")
peak = [before]
try:
    conversion.run(Path(sys.argv[2]), library, threads=2,
                   progress=lambda done, total: peak.append(memory("RssAnon")))
except KtError as problem:
    print(problem.message, problem.hint)
    raise SystemExit(1)
print(max(peak) - before, memory("VmHWM") - most)
"""


def start(source: Path, dest: Path, *, limit: int = 0, target: str = "int4") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(source), str(dest), str(limit), target],
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(source: Path, dest: Path, **options) -> tuple[int, str]:
    process = start(source, dest, **options)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


def complete(source: Path, dest: Path) -> None:
    """In this process."""
    Conversion(open_checkpoint(source), "int4").run(dest, load("avx2"), threads=2)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    return tiny_qwen3_moe(folder, num_hidden_layers=LAYERS, hidden_size=256, num_experts=16)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory) -> dict[str, bytes]:
    """An uninterrupted conversion."""
    dest = tmp_path_factory.mktemp("whole") / "to"
    assert finish(source, dest)[0] == 0
    assert open_checkpoint(dest).kind == "packed"
    return contents(dest)


def test_killed_at_any_point_it_ends_with_the_same_bytes(source, whole, tmp_path):
    kills = 0
    for files in (0, 1, 3, LAYERS):
        dest = tmp_path / f"after-{files}"
        process = start(source, dest)
        while process.poll() is None:
            there = len(list(dest.glob("*.safetensors"))) if dest.exists() else -1
            if there >= files:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        process.wait()
        process.stdout.close()
        kills += process.returncode == -signal.SIGKILL and not (dest / MANIFEST).exists()
        complete(source, dest)
        assert contents(dest) == whole
    assert kills >= 2  # others may have been too late


def test_what_a_kill_can_leave_is_taken_over(source, whole, tmp_path):
    """Every state between two steps, made by hand: half a file, a file without a note, no note."""
    dest = tmp_path / "to"
    dest.mkdir()
    (dest / "kt_conversion.json.partial").write_bytes(b"{")
    complete(source, dest)
    assert contents(dest) == whole
    (dest / MANIFEST).rename(dest / "kt_conversion.json")
    (dest / "layer-00002.safetensors").unlink()
    (dest / "layer-00002.safetensors.partial").write_bytes(b"half")
    (dest / "layer-00003.safetensors").write_bytes(b"short")
    complete(source, dest)
    assert contents(dest) == whole


def test_what_a_kill_left_takes_no_room(source, whole, tmp_path, monkeypatch):
    """On a disk that holds the conversion and one half-written file of it."""
    dest = tmp_path / "to"
    complete(source, dest)
    (dest / MANIFEST).unlink()
    note = json.loads(whole[MANIFEST])
    for name in ("layer-00002.safetensors", "layer-00003.safetensors"):
        del note["files"][name]
    (dest / "kt_conversion.json").write_text(json.dumps(note))
    (dest / "layer-00003.safetensors").rename(dest / "layer-00003.safetensors.partial")
    disk = sum(map(len, whole.values()))

    def statvfs(folder: Path) -> SimpleNamespace:
        used = sum(file.stat().st_size for file in folder.iterdir())
        return SimpleNamespace(f_bavail=disk - used, f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    complete(source, dest)
    assert contents(dest) == whole


def test_a_limit_of_file_sizes_stops_it_clearly(source, whole, tmp_path):
    dest = tmp_path / "to"
    status, out = finish(source, dest, limit=len(whole["layer-00000.safetensors"]) - 1000)
    assert status == 1 and f"cannot write to {dest}" in out and "same command" in out
    assert not list(dest.glob("*.partial")) and not (dest / MANIFEST).exists()
    complete(source, dest)
    assert contents(dest) == whole


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_stops_it_clearly(source, whole, tmp_path):
    """A disk that cannot hold it is refused before; one that fills up meanwhile stops it."""
    disk, size = tmp_path / "disk", sum(map(len, whole.values()))
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 3}", "tmpfs", disk]).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        other, dest = disk / "other", disk / "to"
        other.write_bytes(bytes(size * 2 + size // 2))
        status, out = finish(source, dest)
        assert status == 1 and "bytes more" in out and "are free" in out
        other.write_bytes(bytes(size + size // 2))

        def fill(done: int, total: int) -> None:
            if done > total // 2:
                with suppress(OSError), other.open("ab", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))

        with pytest.raises(KtError, match="the disk is full"):
            conversion = Conversion(open_checkpoint(source), "int4")
            conversion.run(dest, load("avx2"), threads=2, progress=fill)
        assert not list(dest.glob("*.partial")) and not (dest / MANIFEST).exists()
        with pytest.raises(ModelError, match="not finished"):
            open_checkpoint(dest)
        other.unlink()
        complete(source, dest)
        assert contents(dest) == whole
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_it_holds_one_matrix_at_a_time(tmp_path):
    """Of a model of some 110 MB, converted on two threads."""
    sizes = {"hidden_size": 512, "moe_intermediate_size": 512, "num_experts": 16}
    model = tiny_qwen3_moe(tmp_path / "model", num_hidden_layers=4, **sizes)
    size = (model / "model.safetensors").stat().st_size
    assert size > 100e6
    status, out = finish(model, tmp_path / "to", target="bf16")
    anonymous, everything = map(int, out.split())
    assert status == 0
    assert 0 < anonymous < 40e6
    assert 0 < everything < size // 2
