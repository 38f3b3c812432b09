"""Detects the share of the machine that this process may use; without torch or network, and on Linux without subprocesses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from drivetrain.hardware import macos
from drivetrain.hardware.cgroup import CgroupLimits, read_limits
from drivetrain.hardware.cpu import read_cpu
from drivetrain.hardware.disk_space import read_storage
from drivetrain.hardware.facts import Cpu, Gpu, Hardware, Memory
from drivetrain.hardware.kernel_file import parse_number, read_text
from drivetrain.hardware.nvidia import read_gpus
from drivetrain.hardware.software import read_compiler, read_libraries, read_torch

_CONTAINER_WORDS = ("docker", "containerd", "kubepods", "libpod", "lxc")


def detect(
    runs: Path,
    root: Path = Path("/"),
    *,
    environ: Mapping[str, str] = os.environ,
    mask: Iterable[int] | None = None,
    nvml: object = None,
    mac: Mapping[str, str] | None = None,
) -> Hardware:
    """Detect the hardware. Missing or invalid data never raises; the value is None, or the safer one.

    Args:
        runs: the parent of the run folders.
        root: the file-system root below which /proc, /sys and /dev are read.
        environ: environment variables of the process.
        mask: the CPUs this process may run on; None asks the kernel.
        nvml: a module with pynvml's functions; None imports pynvml if a driver is installed.
        mac: the values of sysctl on a Mac; None asks it, if this is one.
    """
    if mac is None and macos.is_macos():
        mac = macos.read_sysctl()
    limits, environment_kind = read_limits(root), _detect_environment(root, environ)
    cpu = read_cpu(root, mask, limits, environ) if mac is None else macos.read_cpu(mac)
    gpus, gpu_trouble = read_gpus(root, environ, environment_kind, nvml)
    return Hardware(
        name=name_machine(cpu, environment_kind, gpus),
        place=environment_kind,
        cgroup=limits.version,
        image=environ.get("DRIVETRAIN_IMAGE") or None,
        cpu=cpu,
        memory=read_memory(root, limits) if mac is None else macos.read_memory(mac),
        storage=read_storage(root, runs, environ),
        gpus=gpus,
        gpu_trouble=gpu_trouble,
        torch=read_torch(),
        compiler=read_compiler(environ),
        libraries=read_libraries(root),
        system="Linux" if mac is None else "Darwin",
        wsl2="microsoft" in read_text(root / "proc/sys/kernel/osrelease").lower(),
    )


def read_memory(root: Path, limits: CgroupLimits) -> Memory:
    """Read the memory below `root` in bytes, from /proc/meminfo and the cgroups' limits."""
    lines = (line.split() for line in read_text(root / "proc/meminfo").splitlines())
    info = {field[0].rstrip(":"): (parse_number(field[1]) or 0) * 1024 for field in lines if len(field) > 1}
    host = info.get("MemTotal", 0)
    # Kernels before 3.14 do not report available memory.
    free = info.get("MemAvailable", info.get("MemFree", 0) + info.get("Cached", 0))
    # Some virtual machines limit a group to a round number above the memory they have.
    limit = limits.memory if limits.memory is not None and limits.memory < host else None
    return Memory(
        host=host,
        limit=limit,
        used=limits.used if limit is not None and limits.used is not None else max(host - free, 0),
        available=free if limits.room is None else min(free, limits.room),
        swap=info.get("SwapTotal", 0) > 0 and limits.swap,
    )


def _detect_environment(root: Path, environ: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if not _is_container(root):
        return "host"
    if (root / ".dockerenv").exists():
        return "docker"
    return "podman" if (root / "run/.containerenv").exists() else "container"


def _is_container(root: Path) -> bool:
    """Return whether this is a container. A virtual machine booted from an image has the marker file, but is none."""
    group, mounts = read_text(root / "proc/1/cgroup"), read_text(root / "proc/self/mountinfo")
    if any(hint in group for hint in _CONTAINER_WORDS) or (root / "run/systemd/container").exists():
        return True
    # In version 2 a private namespace hides the group's name, but every engine mounts its own /etc/hosts.
    return any(line.split()[4:5] == ["/etc/hosts"] for line in mounts.splitlines())


def name_machine(cpu: Cpu, environment_kind: str, gpus: tuple[Gpu, ...]) -> str:
    """Return a short name for titles."""
    kind = "host" if environment_kind == "host" else "container"
    if not gpus:
        return f"{cpu.budget}-CPU {kind}"
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    return f"{cpu.budget}-CPU {kind} with {count}{gpus[0].name}"
