"""Scene: what the doctor looks at, gathered once. Tests plant faults by replacing parts of it."""

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

from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware

PROJECT = Path(__file__).resolve().parents[3]
PATIENCE, TORCH_PATIENCE = 20, 180
"""Seconds that a command may take to answer, and that torch may take to load from a slow disk."""

Command = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Snapshot:
    """This machine, as far as the checks care."""

    hardware: Hardware
    environ: Mapping[str, str]
    runs: Path
    """The folder of the runs."""
    project: Path | None
    """The checkout; None where only the package is installed."""
    uid: int
    run: Command
    """Runs a command; its output, or None if it is missing or fails."""
    disk: Callable[[Path], tuple[int, int]]
    """Bytes in all and bytes left on the mount of a path."""
    port_taken: Callable[[int], bool]
    now: float
    """Seconds since 1970 by this machine's clock."""
    loaded: Mapping[str, Any] = field(default_factory=dict)
    """What torch and its libraries say of themselves in a child process; empty without torch."""


def gather(runs: Path = Path("runs")) -> Snapshot:
    """Look at the real machine; takes as long as torch takes to load."""
    hardware = detect(runs)
    return Snapshot(
        hardware=hardware,
        environ=os.environ,
        runs=runs,
        project=PROJECT if (PROJECT / "compose.yaml").exists() else None,
        uid=os.getuid(),
        run=run,
        disk=disk,
        port_taken=port_taken,
        now=time.time(),
        loaded=loaded() if hardware.torch else {},
    )


def loaded() -> dict[str, Any]:
    """What torch says of itself in a process of its own; empty if it cannot be loaded."""
    found: dict[str, Any] = json.loads(
        run([sys.executable, "-m", "runtime.cli.doctor.torch_process"], TORCH_PATIENCE) or "{}"
    )
    return found


def run(command: Sequence[str], patience: float = PATIENCE) -> str | None:
    """The output of a command, or None."""
    path = os.pathsep.join(filter(None, sys.path)) if command[0] == sys.executable else os.environ.get("PYTHONPATH", "")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def disk(path: Path) -> tuple[int, int]:
    """Bytes in all and bytes left for us where a path lies, or where it would."""
    path = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def port_taken(port: int) -> bool:
    """Whether something listens on this port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
