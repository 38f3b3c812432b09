"""The CPU budget, and physical cores beside hyperthreads."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.hardware.cgroup import read_limits
from drivetrain.hardware.cpu import compute_cpu_budget, read_cpu
from drivetrain.hardware.facts import Cpu
from tests.file_trees import plant_tree, write_files

TOPOLOGY = "sys/devices/system/cpu/cpu{}/topology/{}"
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes asimdhp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40

processor\t: 1
Features\t: fp asimd
"""


def cpu(root: Path, *mask: int, machine: str = "x86_64") -> Cpu:
    return read_cpu(root, mask, read_limits(root), machine=machine)


@pytest.mark.parametrize(
    ("affinity", "cpuset", "quota", "expected"),
    [
        (8, None, None, 8),
        (8, 4, None, 4),
        (2, 8, None, 2),
        (8, None, 0.5, 1),
        (8, None, 1.5, 1),
        (8, None, 2.9, 2),
        (8, None, 3.0, 3),
        (2, None, 16.0, 2),
        (4, 3, 2.5, 2),
        (1, 0, None, 1),
    ],
)
def test_budget(affinity: int, cpuset: int | None, quota: float | None, expected: int) -> None:
    assert compute_cpu_budget(affinity, cpuset, quota) == expected


@pytest.mark.parametrize(
    ("tree", "mask", "host", "cores", "allowed"),
    [
        ("none", (0, 1, 2, 3), 4, 2, 4),
        ("none", (0, 2), 4, 2, 2),
        ("none", (0, 1), 4, 1, 2),
        ("none", (3,), 4, 1, 1),
        ("v2-cpuset", (0, 1), 4, 1, 1),
        ("v2-container", (0, 1), 2, 2, 2),
    ],
)
def test_recorded_processor(
    tmp_path: Path, tree: str, mask: tuple[int, ...], host: int, cores: int, allowed: int
) -> None:
    processor = cpu(plant_tree(tmp_path, tree), *mask)
    assert (processor.host, processor.affinity, processor.cores, processor.budget) == (host, len(mask), cores, allowed)


def test_model_vendor_and_the_flags_that_matter(tmp_path: Path) -> None:
    processor = cpu(plant_tree(tmp_path, "v2-container"), 0, 1)
    assert (processor.model, processor.vendor) == ("AMD EPYC-Milan Processor", "AuthenticAMD")
    assert processor.flags == ("avx", "avx2", "fma", "f16c")


def test_hyperthreads_by_the_old_name_and_by_cpuinfo(tmp_path: Path) -> None:
    new = {TOPOLOGY.format(n, "core_cpus_list"): None for n in range(4)}
    old = {TOPOLOGY.format(n, "thread_siblings_list"): text for n, text in enumerate(["0-1", "0-1", "2-3", "2-3"])}
    assert cpu(plant_tree(tmp_path / "old", "none", new | old), 0, 1, 2, 3).cores == 2
    assert cpu(plant_tree(tmp_path / "cpuinfo", "none", new), 0, 1, 2).cores == 2


def test_an_arm_processor(tmp_path: Path) -> None:
    processor = cpu(write_files(tmp_path, {"proc/cpuinfo": ARM}), 0, 1, machine="aarch64")
    assert (processor.model, processor.vendor, processor.emulated) == ("Neoverse-V1", "ARM", False)
    assert processor.flags == ("asimd", "asimdhp", "asimddp", "sve", "bf16", "i8mm")
    assert (processor.host, processor.cores, processor.budget, processor.fast_cores) == (2, 2, 2, None)


@pytest.mark.parametrize(
    ("maker", "part", "model", "vendor"),
    [
        ("0x41", "0xd4f", "Neoverse-V2", "ARM"),
        ("0x61", "0x000", "Apple silicon in a virtual machine", "Apple"),
        ("0xc0", "0xac3", "implementer 0xc0, part 0xac3", "Ampere"),
    ],
)
def test_names_of_arm_processors(tmp_path: Path, maker: str, part: str, model: str, vendor: str) -> None:
    text = ARM.replace("0x41", maker).replace("0xd40", part)
    processor = cpu(write_files(tmp_path, {"proc/cpuinfo": text}), 0, machine="aarch64")
    assert (processor.model, processor.vendor) == (model, vendor)


@pytest.mark.parametrize(
    ("capacities", "mask", "fast"),
    [
        ((1024, 1024, 446, 446), (0, 1, 2, 3), 2),
        ((1024, 1024, 446, 446), (2, 3), None),
        ((1024, 1024, 1024, 1024), (0, 1, 2, 3), None),
        ((1024, 867, 867, 282), (0, 1, 2, 3), 3),
    ],
)
def test_big_and_little_cores(
    tmp_path: Path, capacities: tuple[int, ...], mask: tuple[int, ...], fast: int | None
) -> None:
    files = {f"sys/devices/system/cpu/cpu{n}/cpu_capacity": f"{size}\n" for n, size in enumerate(capacities)}
    processor = cpu(write_files(tmp_path, {"proc/cpuinfo": ARM} | files), *mask, machine="aarch64")
    assert (processor.cores, processor.fast_cores) == (len(mask), fast)


def test_an_emulated_processor_has_none_of_the_flags_below_it(tmp_path: Path) -> None:
    """In a container for arm64 on an x86 host, qemu shows the host's file, and AVX was taken for a fact."""
    x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: avx avx2 avx512f\n"
    on_x86 = cpu(write_files(tmp_path / "a", {"proc/cpuinfo": x86}), 0, machine="aarch64")
    assert (on_x86.flags, on_x86.emulated) == ((), True)
    on_arm = cpu(write_files(tmp_path / "b", {"proc/cpuinfo": ARM}), 0, machine="x86_64")
    assert (on_arm.flags, on_arm.emulated) == ((), True)
    rosetta = cpu(write_files(tmp_path / "c", {"proc/cpuinfo": x86.replace("AuthenticAMD", "VirtualApple")}), 0)
    assert rosetta.emulated


def test_nothing_to_read_leaves_the_mask(tmp_path: Path) -> None:
    processor = cpu(tmp_path, 0, 5, 6)
    assert (processor.model, processor.vendor, processor.flags) == ("unknown", "unknown", ())
    assert (processor.host, processor.cores, processor.budget) == (3, 3, 3)


FLAGS = "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 amx_tile amx_bf16"


@pytest.mark.parametrize(
    ("environ", "capped", "without"),
    [
        ({}, None, set()),
        ({"ONEDNN_MAX_CPU_ISA": "ALL"}, None, set()),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, None, set()),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16", {"amx_bf16"}),
        ({"ONEDNN_MAX_CPU_ISA": "avx2"}, "ONEDNN_MAX_CPU_ISA=avx2", {"amx_bf16", "avx512_bf16", "avx512f", "avx_vnni"}),
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE"}, "DNNL_MAX_CPU_ISA=AVX512_CORE", {"amx_bf16", "avx512_bf16"}),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "ATEN_CPU_CAPABILITY=avx2", {"amx_bf16", "avx512_bf16", "avx512f"}),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, None, set()),
        ({"ATEN_CPU_CAPABILITY": "nonsense"}, None, set()),
    ],
)
def test_a_cap_on_the_instruction_set_is_respected(
    tmp_path: Path, environ: dict[str, str], capped: str | None, without: set[str]
) -> None:
    write_files(tmp_path, {"proc/cpuinfo": f"processor\t: 0\nflags\t\t: {FLAGS}\n"})
    processor = read_cpu(tmp_path, (0,), read_limits(tmp_path), environ)
    assert processor.capped == capped
    assert not without & set(processor.flags)
    assert ("amx_bf16" in processor.flags) == ("amx_bf16" not in without)
    assert "avx2" in processor.flags
