"""A trainer that the kernel has killed at the memory limit: whether it was so, and what the user is told."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import OutOfMemory
from runtime.hardware import cgroup
from runtime.hardware.facts import Hardware
from runtime.system.units import format_bytes

KILLED_AS_ONE = (
    "memory.oom.group is set (Kubernetes does it): at the memory limit the kernel kills the whole container, and no "
    "smaller micro-batch can be tried; optimize.micro_batch: auto measures one that fits"
)


def killed_since(before: int | None) -> bool:
    """Whether a process of ours has been killed at the memory limit since then."""
    after = cgroup.oom_kills(Path("/"))
    return before is not None and after is not None and after > before


def told(machine: Hardware) -> str:
    """What happened."""
    peak = format_bytes(cgroup.peak_memory(Path("/")))
    return f"the trainer was killed at the memory limit of {format_bytes(machine.memory.limit)} (peak {peak})"


def too_large(why: str) -> OutOfMemory:
    """The error of a job that does not fit."""
    return OutOfMemory(
        f"{why} with micro-batch 1",
        "a job that fits the limit",
        "raise limits.memory, or use a smaller network or smaller samples",
    )
