"""Preloads tcmalloc, which allocates the many short-lived tensors of a training step without system calls."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload

STAGE = Stage.PROCESS
EFFECT = Effect.EXACT
OFF = "off"
UNMEASURED = "it is fixed when a process starts"
Values = Literal["tcmalloc", "off"]


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose tcmalloc on a CPU, if it is installed."""
    if hardware.gpu is not None:
        return Choice(OFF, "training runs on the GPU, which has its own allocator")
    if hardware.system == "Darwin":
        return Choice(OFF, "nothing can be preloaded on macOS")
    if hardware.libraries.tcmalloc:
        return Choice("tcmalloc", "installed; it reuses large buffers without page faults")
    return Choice(OFF, "tcmalloc is not installed (Debian: libtcmalloc-minimal4)")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: if the library is not installed."""
    if not hardware.libraries.tcmalloc:
        return "libtcmalloc is not installed on this machine"
    return None


def environment(hardware: Hardware, value: Value) -> dict[str, str]:
    """Preload the library, without its warnings about large blocks, which are irrelevant here."""
    if value == OFF or not hardware.libraries.tcmalloc:
        return {}
    return {"LD_PRELOAD": hardware.libraries.tcmalloc, "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": str(1 << 40)}


def effective(run: AssembledRun) -> Value:
    """Return whether the library is mapped into this process."""
    return read_preloaded()


def read_preloaded() -> Value:
    """Return the effective value, without a run."""
    maps = Path("/proc/self/maps")
    mapped = maps.read_text(encoding="utf-8", errors="replace") if maps.exists() else ""  # macOS preloads nothing
    return "tcmalloc" if "libtcmalloc" in mapped else OFF
