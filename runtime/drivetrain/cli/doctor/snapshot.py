"""The machine as the doctor sees it, gathered once; tests inject faults by replacing parts of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.system.installation import CHECKOUT

PATIENCE, TORCH_PATIENCE = 20, 180
"""Timeouts in seconds for a command, and for importing torch from a slow disk."""

Command = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Snapshot:
    """This machine, as far as the checks need it."""

    hardware: Hardware
    environ: Mapping[str, str]
    runs: Path
    """The folder of the runs."""
    project: Path | None
    """The checkout; None if only the package is installed."""
    uid: int
    run: Command
    """Runs a command; returns its output, or None if it is missing or fails."""
    disk: Callable[[Path], tuple[int, int]]
    """Total and free bytes on the mount of a path."""
    port_taken: Callable[[int], bool]
    now: float
    """Seconds since 1970 on this machine's clock."""
    loaded: Mapping[str, Any] = field(default_factory=dict)
    """Information from torch and its libraries, read in a child process; empty without torch."""


def gather(runs: Path = Path("runs")) -> Snapshot:
    """Examine the real machine; takes as long as importing torch."""
    hardware = detect(runs)
    return Snapshot(
        hardware=hardware,
        environ=os.environ,
        runs=runs,
        project=CHECKOUT,
        uid=os.getuid(),
        run=run,
        disk=read_disk_space,
        port_taken=is_port_taken,
        now=time.time(),
        loaded=read_torch_facts() if hardware.torch else {},
    )


def read_torch_facts() -> dict[str, object]:
    """Read information from torch in a child process; empty if it cannot be imported."""
    answer: dict[str, Any] = json.loads(
        run([sys.executable, "-P", "-m", "drivetrain.cli.doctor.torch_process"], TORCH_PATIENCE) or "{}"
    )
    return answer


def run(command: Sequence[str], timeout: float = PATIENCE) -> str | None:
    """Return the output of a command, or None."""
    path = os.pathsep.join(filter(None, sys.path)) if command[0] == sys.executable else os.environ.get("PYTHONPATH", "")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def read_disk_space(path: Path) -> tuple[int, int]:
    """Read total and free bytes at a path, or at its nearest existing parent."""
    path = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def is_port_taken(port: int) -> bool:
    """Return whether something listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
