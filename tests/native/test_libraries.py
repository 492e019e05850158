"""The libraries as files: the instructions in them, what they export, what they need."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from kt.errors import MachineError
from kt.kernels import abi, library
from kt.kernels.variants import VARIANTS
from tests.native.harness import RUNNABLE

NATIVE = Path(__file__).parents[2] / "native"
LEVELS = [variant.name for variant in reversed(VARIANTS)]  # lowest first
NAMES = [*LEVELS, "amx_model"]

# What each level brings, as regular expressions of mnemonics. Lower levels must not hold any.
BRINGS = {
    "avx512_vnni": r"vpdpbusds?|vpdpwssds?",
    "avx512_vbmi": r"vpermb|vperm[it]2b|vpmultishiftqb",
    "avx512_bf16": r"vdpbf16ps|vcvtne2?ps2bf16[xy]?",
    "amx": r"tdp\w+|tileload\w+|tilestored|tilezero|tilerelease|ldtilecfg|sttilecfg",
}
# Instruction sets that no level names.
NEVER = {
    "VBMI2": r"vpcompress[bw]|vpexpand[bw]|vpsh[lr]dv?[wdq]",
    "BITALG, VPOPCNTDQ": r"vpopcnt[bwdq]|vpshufbitqmb",
    "IFMA": r"vpmadd52\w+",
    "FP16": r"v(?!cvtps2ph)\w+[ps]h|vmovw|vcvt\w*[ps]h2(?!ps)\w+",
    "GFNI, VAES, VPCLMULQDQ": r"v?gf2p8\w+|v?aes\w+|v?pclmul\w+",
    "AVX-VNNI-INT8": r"vpdpb(ss|su|uu)ds?",
    "AVX10.2": r"v(min|max)max\w*|vcvtb?f8\w*",
    "BMI, POPCNT, LZCNT, MOVBE": r"andn|bextr|bls(r|i|msk)|bzhi|p(dep|ext)|mulx|rorx|s[ah][lr]x"
    r"|lzcnt|popcnt|movbe|ad[co]x",
}
VEX, EVEX = {"c4", "c5"}, {"62"}  # the first byte of such an instruction in 64-bit mode


class Instruction(NamedTuple):
    """first: its first byte. mnemonic: without prefixes."""

    first: str
    mnemonic: str
    operands: str


def path_of(name: str) -> Path:
    return abi.LIBRARIES / f"libkt_{name}.so"


def tool(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout


@cache
def instructions(name: str) -> Counter[Instruction]:
    """Each different one, and how often it occurs."""
    return Counter(
        _disassembled(tool("objdump", "-d", "-w", "-M", "intel", "--no-addresses", path_of(name)))
    )


def _disassembled(listing: str) -> Iterator[Instruction]:
    for line in listing.splitlines():
        parts = line.split("\t")
        if len(parts) < 3:
            continue
        words = [word for word in parts[2].split() if not word.startswith("{")]
        yield Instruction(parts[1].split()[0], words[0] if words else "", " ".join(words[1:]))


def used(name: str, pattern: str) -> set[str]:
    mnemonic = re.compile(pattern)
    return {i.mnemonic for i in instructions(name) if mnemonic.fullmatch(i.mnemonic)}


@pytest.mark.parametrize("name", NAMES)
def test_no_instruction_above_the_level(name):
    assert instructions(name).total() > 10_000
    level = "avx512_bf16" if name == "amx_model" else name  # the model needs no tiles
    for higher in LEVELS[LEVELS.index(level) + 1 :]:
        if higher in BRINGS:
            assert not used(name, BRINGS[higher]), f"{name} uses {higher}"
    for extension, pattern in NEVER.items():
        assert not used(name, pattern), f"{name} uses {extension}"


@pytest.mark.parametrize("name", BRINGS)
def test_every_level_uses_what_it_brings(name):
    """Else the test above would prove nothing. VBMI's come in by the compiler's own choice. Vector
    ones are AVX-512's: VEX forms of the same names are other extensions.
    """
    assert used(name, BRINGS[name])
    if name != "amx":
        pattern = re.compile(BRINGS[name])
        firsts = {i.first for i in instructions(name) if pattern.fullmatch(i.mnemonic)}
        assert firsts == EVEX


def test_avx2_holds_no_evex_instruction_and_no_wide_or_mask_register():
    wide = re.compile(r"\bzmm|\bk[0-7]\b|\b[xy]mm(1[6-9]|2\d|3[01])\b")
    found = [i for i in instructions("avx2") if i.first in EVEX or wide.search(i.operands)]
    assert found == []
    assert any("ymm" in i.operands for i in instructions("avx2"))
    assert any(i.first in EVEX for i in instructions("avx512"))


def test_the_probe_runs_on_any_x86_64():
    found = [i for i in instructions("probe") if i.first in VEX | EVEX or "ymm" in i.operands]
    assert found == []
    assert used("probe", "cpuid|xgetbv") == {"cpuid", "xgetbv"}
    above_sse2 = r"pshufb|pmull[dq]|pmaddubsw|p(min|max)[su][bdw]|pinsr[bdq]|pextr[bdq]|blendv\w+"
    assert used("probe", above_sse2) <= {"pminsw", "pmaxsw", "pminub", "pmaxub"}
    assert not used("probe", NEVER["BMI, POPCNT, LZCNT, MOVBE"])


def exported(name: str) -> set[str]:
    lines = tool("nm", "-D", "--defined-only", path_of(name)).splitlines()
    return {line.split()[-1] for line in lines}


def declared(header: Path) -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", abi.declarations(header.read_text()), flags=re.DOTALL)
    return set(re.findall(r"\b(kt_\w+)\(", text))


@pytest.mark.parametrize("name", NAMES)
def test_exports_are_the_functions_of_the_header(name):
    functions = declared(NATIVE / "include" / "kt.h")
    assert "kt_forward" in functions
    assert exported(name) == functions


def test_exports_of_the_probe():
    assert exported("probe") == declared(NATIVE / "probe" / "probe.h")


@pytest.mark.parametrize("name", [*NAMES, "probe"])
def test_only_the_c_library_is_needed(name):
    needed = re.findall(r"NEEDED.*\[(.+?)\.so", tool("readelf", "-d", path_of(name)))
    assert needed
    assert set(needed) <= {"libc", "libm", "libpthread", "ld-linux-x86-64"}
    stack = re.search(r"GNU_STACK.*\n?.*", tool("readelf", "-lW", path_of(name)))
    assert stack is not None
    assert "RWE" not in stack[0]


def test_the_installed_header_is_the_source():
    assert (abi.LIBRARIES / "kt.h").read_text() == (NATIVE / "include" / "kt.h").read_text()
    assert f"#define KT_ABI_VERSION {abi.VERSION}\n" in (NATIVE / "include" / "kt.h").read_text()


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_variant_that_runs_is_the_one_asked_for(name):
    loaded = library.load(name)
    assert loaded.ffi.string(loaded.lib.kt_variant_name()).decode() == name
    assert loaded.lib.kt_abi_version() == abi.VERSION


def test_this_cpu_runs_what_the_survey_says():
    assert RUNNABLE
    assert set(RUNNABLE) <= set(NAMES)
    assert "avx2" in RUNNABLE


def test_a_library_of_another_abi_is_refused(monkeypatch):
    monkeypatch.setattr(abi, "VERSION", abi.VERSION + 1)
    with pytest.raises(MachineError, match=r"is of another kt \(ABI \d+, this kt needs \d+\)"):
        library.load.__wrapped__("avx2")


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    abi.ffi()
    monkeypatch.setattr(abi, "LIBRARIES", tmp_path)
    with pytest.raises(MachineError, match=r"libkt_avx2\.so cannot be loaded"):
        library.load.__wrapped__("avx2")
