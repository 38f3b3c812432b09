"""Reads the processor: model, instruction sets, logical CPUs, and the physical cores of the CPUs we may use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from drivetrain.hardware.cgroup import CgroupLimits
from drivetrain.hardware.facts import Cpu
from drivetrain.hardware.kernel_file import parse_cpu_list, parse_number, read_text

# Only flags that decisions and reports use; the full list has a hundred entries.
_X86 = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "amx_fp16",
)
_ARM = ("asimd", "fphp", "asimdhp", "asimddp", "sve", "sve2", "bf16", "svebf16", "i8mm", "sme")
_ARM_VENDORS = {"0x61": "Apple", "0xc0": "Ampere"}
_ARM_MODELS = {
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x61", "0x000"): "Apple silicon in a virtual machine",
}
_FAST_CORE_SHARE = 0.75
"""Cores from this share of the fastest one's capacity count as fast: some chips have one core that is a bit faster."""
_CPU_PATH = Path("sys/devices/system/cpu")
_CAP_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
# Flags that each level of oneDNN and torch adds; a cap at a level removes the flags of all higher levels.
_REMOVED_FLAGS = {
    "AVX512_CORE_AMX_FP16": (),
    "AVX512_CORE_AMX": ("amx_fp16",),
    "AVX512_CORE_FP16": ("amx_tile", "amx_bf16", "amx_int8"),
    "AVX512_CORE_BF16": ("avx512_fp16",),
    "AVX512_CORE_VNNI": ("avx512_bf16",),
    "AVX512_CORE": ("avx512_vnni",),
    "AVX2_VNNI_2": ("avx512f", "avx512bw", "avx512vl"),
    "AVX2_VNNI": (),
    "AVX2": ("avx_vnni",),
    "AVX": ("avx2", "fma", "f16c"),
    "SSE41": ("avx",),
}
_ATEN_LEVELS = {"AVX512": "AVX512_CORE_AMX_FP16", "AVX2": "AVX2", "DEFAULT": "SSE41"}


def read_cpu(
    root: Path,
    mask: Iterable[int] | None,
    limits: CgroupLimits,
    environ: Mapping[str, str] | None = None,
    machine: str | None = None,
) -> Cpu:
    """Read the processor below `root`, which is `/`, or the root of a recorded tree.

    Args:
        mask: the CPUs that this process may run on; None asks the kernel.
        limits: the cgroups' limits.
        environ: environment variables, which may cap the instruction set.
        machine: the architecture of this process; None asks Python.
    """
    machine = machine or platform.machine()
    allowed = frozenset(os.sched_getaffinity(0) if mask is None else mask)
    block = _read_first_block(root)
    flags = set((block.get("flags") or block.get("Features") or "").split())
    capped, capped_flags = _read_cap(environ or {}, flags)
    online = len(parse_cpu_list(read_text(root / _CPU_PATH / "online")))
    return Cpu(
        model=_describe_model(block),
        vendor=_describe_vendor(block),
        architecture=machine,
        flags=tuple(flag for flag in (_ARM if machine == "aarch64" else _X86) if flag in flags - capped_flags),
        host=online or sum("processor" in block for block in _read_blocks(root)) or len(allowed),
        affinity=len(allowed),
        cpuset=limits.cpuset,
        quota=limits.quota,
        cores=_count_cores(root, allowed),
        budget=compute_cpu_budget(len(allowed), limits.cpuset, limits.quota),
        capped=capped,
        fast_cores=_count_fast_cores(root, allowed),
        emulated=_is_emulated(block, machine),
    )


def _read_cap(environ: Mapping[str, str], flags: set[str]) -> tuple[str | None, set[str]]:
    """Read the variable that caps the instruction set, and the flags it removes; a cap on either library counts."""
    variables, removed, levels = [], set[str](), list(_REMOVED_FLAGS)
    for name in _CAP_VARIABLES:
        level = environ.get(name, "").upper()
        if name == "ATEN_CPU_CAPABILITY":
            level = _ATEN_LEVELS.get(level, "")
        if level in _REMOVED_FLAGS:
            beyond = {flag for above in levels[: levels.index(level) + 1] for flag in _REMOVED_FLAGS[above]} & flags
            variables += [f"{name}={environ[name]}"] if beyond else []
            removed |= beyond
    return " ".join(variables) or None, removed


def compute_cpu_budget(affinity: int, cpuset: int | None, quota: float | None) -> int:
    """Compute the number of CPUs to plan with: the smallest of all limits, a quota rounded down, at least 1."""
    limits = [affinity] + ([cpuset] if cpuset else []) + ([int(quota)] if quota is not None else [])
    return max(min(limits), 1)


def _read_first_block(root: Path) -> dict[str, str]:
    """Read the first processor in /proc/cpuinfo; no more is read, because the kernel generates the text slowly."""
    fields: dict[str, str] = {}
    try:
        with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip() and fields:
                    break
                fields.update([_split_line(line)])
    except OSError:
        return fields
    return fields


def _describe_model(block: dict[str, str]) -> str:
    name, code, maker = block.get("model name"), block.get("CPU part"), block.get("CPU implementer", "?")
    if name:
        return " ".join(name.split())
    if code:
        return _ARM_MODELS.get((maker, code)) or f"implementer {maker}, part {code}"
    return "unknown"


def _describe_vendor(block: dict[str, str]) -> str:
    maker = block.get("CPU implementer")
    return block.get("vendor_id") or (_ARM_VENDORS.get(maker, "ARM") if maker else "unknown")


def _is_emulated(block: dict[str, str], machine: str) -> bool:
    """Return whether the processor is emulated: qemu shows the file of the host; Rosetta, on a Mac, names itself."""
    if block.get("vendor_id") == "VirtualApple":
        return True
    return ("vendor_id" in block and machine == "aarch64") or ("CPU implementer" in block and machine == "x86_64")


def _count_cores(root: Path, allowed: frozenset[int]) -> int:
    """Count the physical cores of `allowed`: hyperthreads of one core list the same siblings."""
    siblings = {cpu: _read_siblings(root, cpu) for cpu in allowed}
    if not all(siblings.values()):
        core_of = _read_cpuinfo_cores(root)
        siblings = {cpu: core_of.get(cpu, f"cpu {cpu}") for cpu in allowed}
    return len(set(siblings.values()))


def _count_fast_cores(root: Path, allowed: frozenset[int]) -> int | None:
    """Count the physical cores of the fastest kind; None if all are alike, or the kernel does not say."""
    capacities = {cpu: parse_number(read_text(root / _CPU_PATH / f"cpu{cpu}" / "cpu_capacity")) or 0 for cpu in allowed}
    fast = frozenset(
        cpu for cpu, capacity in capacities.items() if capacity >= _FAST_CORE_SHARE * max(capacities.values())
    )
    return None if fast == allowed else _count_cores(root, fast)


def _read_siblings(root: Path, cpu: int) -> str:
    topology = root / _CPU_PATH / f"cpu{cpu}" / "topology"
    # The second name is from kernels before 5.3.
    return read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")


def _read_blocks(root: Path) -> list[dict[str, str]]:
    blocks = read_text(root / "proc/cpuinfo").split("\n\n")
    return [dict(map(_split_line, block.splitlines())) for block in blocks]


def _split_line(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def _read_cpuinfo_cores(root: Path) -> dict[int, str]:
    """Read the core of each CPU in /proc/cpuinfo, if listed."""
    return {
        int(block["processor"]): f"{block.get('physical id', '')}/{block['core id']}"
        for block in _read_blocks(root)
        if block.get("processor", "").isdigit() and "core id" in block
    }
