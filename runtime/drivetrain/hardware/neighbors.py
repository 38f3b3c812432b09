"""Measures how many CPUs other programs use, before a plan chooses a number of threads."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from drivetrain.hardware.facts import Hardware
from drivetrain.system import cpu_starvation

SWITCH = "DRIVETRAIN_NEIGHBORS"
"""The variable that makes plans independent of other programs: `off`."""
WINDOW_SECONDS = 0.2


def add_neighbors(hardware: Hardware) -> Hardware:
    """Return the hardware with the CPUs that other programs use at the moment, which takes a fifth of a second."""
    if os.environ.get(SWITCH) == "off" or hardware.system != "Linux" or hardware.cpu.budget == 1:
        return hardware
    cpus = os.sched_getaffinity(0)
    start, start_seconds = time.monotonic(), cpu_starvation.read_busy_seconds(cpus)
    own_before = time.process_time()
    time.sleep(WINDOW_SECONDS)
    end_seconds, own = cpu_starvation.read_busy_seconds(cpus), time.process_time() - own_before
    if start_seconds is None or end_seconds is None:
        return hardware
    used = max(0.0, end_seconds - start_seconds - own) / (time.monotonic() - start)
    return replace(hardware, cpu=replace(hardware.cpu, neighbors=round(min(used, len(cpus)), 2)))
