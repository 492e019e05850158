"""Which kernel variant a CPU gets. The flags of the captured CPUs are those of /proc/cpuinfo."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kt.errors import MachineError, UsageError
from kt.kernels.variants import VARIANTS, select
from tests.machines import captured

BEST = {
    "haswell": "avx2",
    "zen2": "avx2",
    "raptor_lake": "avx2",
    "skylake_sp": "avx512",
    "cascade_lake": "avx512_vnni",
    "cooper_lake": "avx512_vnni",  # BF16, but no VBMI
    "ice_lake_sp": "avx512_vbmi",
    "zen4": "avx512_bf16",
    "zen5": "avx512_bf16",
    "sapphire_rapids": "amx",
    "sapphire_rapids_refused": "avx512_bf16",
}


@pytest.mark.parametrize(("name", "variant"), BEST.items())
def test_the_best_variant(name: str, variant: str) -> None:
    choice = select(captured(name).cpu, None)
    assert choice.value.name == variant
    assert choice.reason


def test_the_table_is_ordered_and_each_row_needs_more_than_the_next() -> None:
    assert [variant.name for variant in VARIANTS] == [
        "amx",
        "avx512_bf16",
        "avx512_vbmi",
        "avx512_vnni",
        "avx512",
        "avx2",
    ]
    for better, next_best in pairwise(VARIANTS):
        assert better.flags > next_best.flags


@pytest.mark.parametrize("flag", sorted(VARIANTS[0].flags))
def test_no_variant_is_chosen_without_one_of_its_flags(flag: str) -> None:
    cpu = captured("sapphire_rapids").cpu
    cpu = replace(cpu, flags=cpu.flags - {flag})
    usable = [variant.name for variant in VARIANTS if flag not in variant.flags]
    if usable:
        assert select(cpu, None).value.name == usable[0]
    else:
        with pytest.raises(MachineError, match=flag):
            select(cpu, None)


def test_the_reason_names_what_the_next_better_variant_lacks() -> None:
    assert "avx512vbmi" in select(captured("cascade_lake").cpu, None).reason
    assert "permit" in select(captured("sapphire_rapids_refused").cpu, None).reason


@pytest.mark.parametrize("name", ["nehalem", "sandy_bridge"])
def test_below_avx2_is_one_sentence(name: str) -> None:
    cpu = captured(name).cpu
    with pytest.raises(MachineError) as caught:
        select(cpu, None)
    assert caught.value.exit_code == 3
    assert "AVX2" in caught.value.message and cpu.model in caught.value.message
    assert "\n" not in caught.value.message and caught.value.message.endswith("avx2, f16c, fma.")


@pytest.mark.parametrize("override", ["avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"])
def test_an_override_may_go_down(override: str) -> None:
    choice = select(captured("sapphire_rapids").cpu, override)
    assert choice.value.name == override
    assert "KT_VARIANT" in choice.reason


@pytest.mark.parametrize(
    ("name", "override", "lacks"),
    [
        ("cascade_lake", "avx512_vbmi", "avx512vbmi"),
        ("raptor_lake", "avx512", "avx512f"),
        ("cooper_lake", "avx512_bf16", "avx512vbmi"),
        ("sapphire_rapids_refused", "amx", "permission"),
        ("zen5", "amx", "amx_tile"),
    ],
)
def test_an_override_above_the_cpu_is_refused(name: str, override: str, lacks: str) -> None:
    with pytest.raises(UsageError, match=lacks) as caught:
        select(captured(name).cpu, override)
    assert override in caught.value.message


def test_an_unknown_override_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="'avx10'") as caught:
        select(captured("zen5").cpu, "avx10")
    assert all(variant.name in caught.value.hint for variant in VARIANTS)


def test_no_override_helps_below_avx2() -> None:
    with pytest.raises(MachineError):
        select(captured("nehalem").cpu, "avx2")
