"""Facts of a Mac without a container, from recorded output of sysctl."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivetrain.hardware import macos
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import from_json
from tests import paths

# The lines that count of `sysctl hw machdep.cpu` on an M1 with macOS 12; an M2 also has the two features that are 0.
M1 = """hw.ncpu: 8
hw.memsize: 8589934592
hw.activecpu: 8
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_BF16: 0
hw.optional.arm.FEAT_I8MM: 0
hw.optional.arm.FEAT_FP16: 1
hw.optional.neon: 1
hw.optional.neon_fp16: 1
hw.physicalcpu: 8
hw.logicalcpu: 8
hw.nperflevels: 2
hw.perflevel0.physicalcpu: 4
hw.perflevel0.logicalcpu: 4
hw.perflevel1.physicalcpu: 4
machdep.cpu.cores_per_package: 8
machdep.cpu.brand_string: Apple M1
machdep.cpu.thread_count: 8
"""
M2 = M1.replace("BF16: 0", "BF16: 1").replace("I8MM: 0", "I8MM: 1").replace("M1", "M2").replace("8589", "17179")
INTEL = """hw.ncpu: 12
hw.memsize: 17179869184
hw.physicalcpu: 6
hw.logicalcpu: 12
hw.optional.avx1_0: 1
hw.optional.avx2_0: 1
hw.optional.fma: 1
hw.optional.avx512f: 0
machdep.cpu.vendor: GenuineIntel
machdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz
"""


@pytest.mark.parametrize(("text", "stem"), [(M1, "macbook-m1"), (M2, "macbook-m2")])
def test_the_recorded_macs_are_what_sysctl_says(text: str, stem: str) -> None:
    recorded = json.loads((paths.MACHINES / f"{stem}.json").read_text())["cpu"]
    cpu = asdict(macos.read_cpu(macos.parse_sysctl(text), "arm64"))
    assert json.loads(json.dumps(cpu)) == recorded


def test_an_intel_mac_and_a_python_for_intel_on_apple_silicon() -> None:
    intel = macos.read_cpu(macos.parse_sysctl(INTEL), "x86_64")
    assert (intel.flags, intel.cores, intel.budget, intel.fast_cores) == (("avx", "avx2", "fma"), 6, 12, None)
    assert not intel.emulated
    assert macos.read_cpu(macos.parse_sysctl(M1), "x86_64").emulated


def test_memory() -> None:
    memory = macos.read_memory(macos.parse_sysctl(M1), 3 << 30)
    assert (memory.host, memory.available, memory.used, memory.limit) == (8 << 30, 3 << 30, 5 << 30, None)


def test_without_sysctl_the_safer_values() -> None:
    cpu = macos.read_cpu({}, "arm64")
    assert (cpu.model, cpu.budget, cpu.cores, cpu.flags) == ("unknown", 1, 1, ())


def test_the_command_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "sysctl"
    command.write_text('#!/bin/sh\n[ "$*" = "hw machdep.cpu" ] && echo "hw.ncpu: 8"\n')
    command.chmod(0o755)
    monkeypatch.setattr(macos, "SYSCTL", str(command))
    assert macos.read_sysctl() == {"hw.ncpu": "8"}
    monkeypatch.setattr(macos, "SYSCTL", str(tmp_path / "absent"))
    assert macos.read_sysctl() == {}


def test_detect_without_what_macos_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither /proc nor cgroups, and Python there has no sched_getaffinity and no ST_NOEXEC."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "ST_NOEXEC")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(macos, "read_sysctl", lambda: macos.parse_sysctl(M1))
    free: Any = type("Memory", (), {"available": 4 << 30})
    monkeypatch.setattr(psutil, "virtual_memory", free)
    machine = detect(tmp_path / "runs", tmp_path, environ={"HOME": str(tmp_path)})
    assert (machine.system, machine.place, machine.cgroup, machine.name) == ("Darwin", "host", 0, "8-CPU host")
    assert (machine.cpu.fast_cores, machine.memory.available, machine.storage.shm) == (4, 4 << 30, None)
    assert machine.storage.cache_exec
    assert from_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_here_is_no_mac() -> None:
    system = subprocess.run(["uname", "-s"], capture_output=True, text=True, check=True).stdout.strip()
    assert macos.is_macos() == (system == "Darwin")
