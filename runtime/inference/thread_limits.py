"""Threads of a process that has no plan, such as `predict`: told to the libraries before torch loads them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime.hardware import device_check, gpu_selection
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.optimizations import cpu_threads


def limit() -> Hardware:
    """Keep this process within what the container may use; returns what that is. Call it before torch is imported."""
    machine = device_check.usable(detect(Path()), tell)
    os.environ.update(gpu_selection.environment(machine))
    os.environ.update(cpu_threads.environment(machine, cpu_threads.threads_of(machine)))
    return machine


def tell(text: str) -> None:
    """One line beside the results."""
    print(text, file=sys.stderr, flush=True)
