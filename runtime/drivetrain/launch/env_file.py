"""Fits the compose files to this machine: `python -m drivetrain.launch.env_file` writes .env; the files have defaults for all.

Values in .env stay, unless they are of another checkout or another kind of engine. Python's own library is enough for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from drivetrain.launch import engine_traits
from drivetrain.launch.project import PROJECT, TAG, container_prefix, image_tag
from drivetrain.system.console import say

SECURE_UID = 1000
"""Owner of the files if root starts a container from a checkout owned by root."""
GIB = 1 << 30
GPU_RESERVE = 2 * GIB
"""Memory that a GPU job leaves to the host, unless that is more than half of it."""
CPU_RESERVE, LEAST_CPU_MEMORY = 4 * GIB, 4 * GIB
"""Memory that a job on a CPU leaves to the host, and its memory on a small host."""


def default_cpus(host: float, *, gpu: bool) -> float:
    """Return all CPUs of the host but one, and on a CPU at least two of them."""
    return max(host - 1, 1.0 if gpu else min(2.0, host))


def default_memory(host: int, *, gpu: bool) -> str:
    """Return the bytes of the host less a reserve, in whole MiB as the engine expects it.

    A CPU job leaves CPU_RESERVE to the desktop or editor next to it, and a GPU job, whose host is a server, GPU_RESERVE.
    """
    usable = max(host - GPU_RESERVE, host // 2) if gpu else max(host - CPU_RESERVE, LEAST_CPU_MEMORY)
    return f"{usable >> 20}m"


def find_owner(project: Path) -> tuple[int, int]:
    """Find the user who owns the files of a container: the current user; for root the checkout's owner, else uid 1000."""
    if os.getuid():
        return os.getuid(), os.getgid()
    status = project.stat()
    return (status.st_uid, status.st_gid) if status.st_uid else (SECURE_UID, SECURE_UID)


def list_settings(info: dict[str, Any], project: Path = PROJECT) -> dict[str, str]:
    """List the settings that .env should have on this machine.

    Args:
        info: information from the engine (`docker info`); empty if none answers.
    """
    engine = engine_traits.find(info)
    uid, gid = find_owner(project)
    owner = {"DRIVETRAIN_UID": str(uid), "DRIVETRAIN_GID": str(gid)} | engine.owner()
    settings = {"COMPOSE_PROJECT_NAME": container_prefix(project), TAG: image_tag(project), **owner}
    # The engine's size, which on macOS and Windows is in a virtual machine; else the size of this machine.
    cpus = info.get("NCPU") or os.cpu_count() or 1
    memory = info.get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for gpu, prefix in ((False, "DRIVETRAIN"), (True, "DRIVETRAIN_GPU")):
        limits = {
            f"{prefix}_CPUS": f"{default_cpus(cpus, gpu=gpu):g}",
            f"{prefix}_MEMORY": default_memory(memory, gpu=gpu),
        }
        settings |= limits | engine.variables(gpu=gpu)
    return settings


def write(info: dict[str, Any], base: str = "", project: Path = PROJECT) -> dict[str, str]:
    """Write .env, and return the values that are new in it.

    Args:
        base: the base image that an image here is built on; empty if none is known.
    """
    path, settings = project / ".env", list_settings(info, project) | ({"BASE_IMAGE": base} if base else {})
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    # The checkout may have been copied, and an engine that runs as the user gives way to one that runs as root.
    derived = {"COMPOSE_PROJECT_NAME": "drivetrain-", TAG: "checkout-"}
    kept_lines = []
    for line in lines:
        name, _, value = line.partition("=")
        is_other = name in derived and value.startswith(derived[name]) and value != settings[name]
        if name in ("DRIVETRAIN_UID", "DRIVETRAIN_GID") and info:
            is_other = (value == "0") != (settings[name] == "0")
        if not is_other:
            kept_lines.append(line)
    names = {line.partition("=")[0] for line in kept_lines}
    added = {name: value for name, value in settings.items() if name not in names}
    text = "".join(f"{line}\n" for line in [*kept_lines, *(f"{name}={value}" for name, value in added.items())])
    path.write_text(text, encoding="utf-8")
    if os.getuid() == 0:  # also under sudo, .env belongs to whom the checkout belongs
        os.chown(path, project.stat().st_uid, project.stat().st_gid)
    return added


def _ask_engine() -> dict[str, Any]:
    """Ask the engine about itself; returns nothing if no engine answers, though newer clients then print empty values."""
    try:
        answer = subprocess.run(
            ["docker", "info", "--format", "{{json .}}"], capture_output=True, text=True, check=True
        )
        info: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return {}
    return info if info.get("NCPU") else {}


def main() -> None:
    """Write .env, and print its new values."""
    info = _ask_engine()
    choose = [str(PROJECT / "scripts" / "env"), "base", "--here"]  # only a build gets one
    base = subprocess.run(choose, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() if info else ""
    # Variables that only GPU jobs read would puzzle all others.
    hidden = "DRIVETRAIN_GPU_" if shutil.which("nvidia-smi") is None else " "
    added = [f"{name}={value}" for name, value in write(info, base).items() if not name.startswith(hidden)]
    if added:
        say(" ".join([".env:", *added]))


if __name__ == "__main__":
    main()
