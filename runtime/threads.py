"""Threads of a process that has no plan, such as `predict`: told to the libraries before torch loads them."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.detect import detect
from runtime.hardware import Hardware
from runtime.optimizations import cpu_threads


def limit() -> Hardware:
    """Keep this process within what the container may use; returns what that is. Call it before torch is imported."""
    machine = detect(Path())
    os.environ.update(cpu_threads.environment(machine, cpu_threads.threads_of(machine)))
    return machine
