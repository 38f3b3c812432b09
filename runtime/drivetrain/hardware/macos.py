"""Reads a Mac without a container: `sysctl` says what Linux has in /proc and /sys; psutil knows how much memory is free."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from drivetrain.hardware.facts import Cpu, Memory
from drivetrain.hardware.kernel_file import parse_number

SYSCTL = "/usr/sbin/sysctl"
# By the flag of Linux: the names in different versions of macOS.
_FLAGS = {
    "avx": ("avx1_0",),
    "avx2": ("avx2_0",),
    "fma": ("fma",),
    "avx512f": ("avx512f",),
    "asimd": ("AdvSIMD", "neon"),
    "fphp": ("arm.FEAT_FP16", "neon_fp16"),
    "asimdhp": ("arm.FEAT_FP16", "neon_fp16"),
    "asimddp": ("arm.FEAT_DotProd",),
    "bf16": ("arm.FEAT_BF16",),
    "i8mm": ("arm.FEAT_I8MM",),
    "sme": ("arm.FEAT_SME",),
}


def is_macos() -> bool:
    """Return whether this process runs on macOS itself."""
    return platform.system() == "Darwin"


def read_sysctl() -> dict[str, str]:
    """Read the values of this Mac by name; empty if they cannot be read."""
    import subprocess  # slow to import, and never needed on Linux

    try:
        done = subprocess.run([SYSCTL, "hw", "machdep.cpu"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_sysctl(done.stdout)


def parse_sysctl(text: str) -> dict[str, str]:
    """Parse the lines `name: value` of sysctl."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in rows if colon}


def read_cpu(values: Mapping[str, str], machine: str | None = None) -> Cpu:
    """Read the processor: macOS has no cgroups, and a process may use all CPUs.

    Args:
        values: from sysctl.
        machine: the architecture of this process; None asks Python.
    """
    numbers = {name: parse_number(text) for name, text in values.items()}
    logical = numbers.get("hw.logicalcpu") or numbers.get("hw.ncpu") or 1
    cores, fast = numbers.get("hw.physicalcpu") or logical, numbers.get("hw.perflevel0.physicalcpu")
    model = values.get("machdep.cpu.brand_string", "unknown")
    machine = machine or platform.machine()
    return Cpu(
        model=model,
        vendor="Apple" if "Apple" in model else values.get("machdep.cpu.vendor", "unknown"),
        architecture="aarch64" if machine == "arm64" else machine,
        flags=tuple(flag for flag, names in _FLAGS.items() if any(_is_on(values, name) for name in names)),
        host=logical,
        affinity=logical,
        cpuset=None,
        quota=None,
        cores=cores,
        budget=logical,
        fast_cores=fast if fast and fast < cores else None,
        emulated=machine == "x86_64" and "Apple" in model,
    )


def read_memory(values: Mapping[str, str], available: int | None = None) -> Memory:
    """Read the memory in bytes; macOS may always swap.

    Args:
        values: from sysctl.
        available: free memory; None asks psutil.
    """
    import psutil

    free = psutil.virtual_memory().available if available is None else available
    host = parse_number(values.get("hw.memsize", "")) or free
    return Memory(host=host, limit=None, used=max(host - free, 0), available=free, swap=True)


def _is_on(values: Mapping[str, str], name: str) -> bool:
    return values.get(f"hw.optional.{name}") == "1"
