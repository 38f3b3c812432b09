"""How the processes of a calibration are started, without torch: their command line and their environment."""

from __future__ import annotations

import sys
from pathlib import Path

from runtime import optimizations
from runtime.hardware import gpu_selection
from runtime.hardware.facts import Hardware
from runtime.optimizations import Value, allocator, cpu_threads, openmp_runtime


def defaults(hardware: Hardware) -> dict[str, Value]:
    """The settings that a training on this machine starts with, if no job requests others."""
    found = hardware.libraries
    usual = hardware.gpu is None and hardware.system == "Linux"
    x86 = usual and hardware.cpu.architecture == "x86_64"
    runtime = "iomp5" if found.iomp5 else "libomp" if found.libomp else openmp_runtime.OFF
    return {
        "cpu_threads": cpu_threads.threads_of(hardware),
        "openmp_runtime": runtime if x86 else openmp_runtime.OFF,
        "allocator": "tcmalloc" if usual and found.tcmalloc else allocator.OFF,
    }


def environment(hardware: Hardware, **other: Value) -> dict[str, str]:
    """The environment of such a process.

    Args:
        hardware: the machine.
        other: values in place of the defaults.
    """
    values = defaults(hardware) | other
    return gpu_selection.environment(hardware) | optimizations.environment(hardware, values)


def command(folder: Path, seconds: float, *words: str) -> list[str]:
    """The command line of such a process."""
    return [sys.executable, "-m", "runtime.tuning.calibration.probe_process", str(folder), str(seconds), *words]
