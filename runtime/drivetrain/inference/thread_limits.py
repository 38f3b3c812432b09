"""Limits the threads of a process without a plan, for example `predict`, before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

from drivetrain.hardware import device_check, gpu_selection
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations import cpu_threads
from drivetrain.system.console import say_aside


def limit_threads() -> Hardware:
    """Keep this process within the container's limits; returns the hardware. Call it before torch is imported."""
    machine = device_check.select_usable_hardware(detect(Path()), say_aside)
    os.environ.update(gpu_selection.build_environment(machine))
    os.environ.update(cpu_threads.environment(machine, cpu_threads.threads_of(machine)))
    return machine
