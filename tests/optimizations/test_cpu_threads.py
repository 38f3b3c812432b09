"""How many threads a run has beside other programs."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from drivetrain.hardware import facts, neighbors
from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.optimizations import cpu_threads
from drivetrain.system import cpu_starvation
from tests.messages import says
from tests.paths import MACHINES

JOB = job_spec.check(parse("name: a\ntask: image-classification\ndata: {train: x}\n", "job.yaml"))


def read_machine(cpus: int = 2, neighbor_cpus: float = 0.0, **changes: float) -> Hardware:
    hardware = facts.read_hardware(MACHINES / "vm-2core-cgroup1.json")
    counts = {"host": cpus, "affinity": cpus, "cpuset": cpus, "cores": cpus, "budget": cpus} | changes
    return replace(hardware, cpu=replace(hardware.cpu, neighbors=neighbor_cpus, **counts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hardware", "threads"),
    [
        (read_machine(2, 0.0), 2),
        (read_machine(2, 0.9), 2),
        (read_machine(2, 1.0), 1),
        (read_machine(2, 2.0), 1),
        (read_machine(16, 7.0), 16),
        (read_machine(16, 8.0), 8),
        (read_machine(16, 15.9), 1),
        # A container with a quota of two CPUs of a large host, half of which is idle.
        (read_machine(64, 40.0, budget=2, quota=2.0), 2),
    ],
)
def test_the_idle_cpus_where_others_use_half_or_more(hardware: Hardware, threads: int) -> None:
    choice = cpu_threads.choose(JOB, hardware, None)
    assert choice.value == threads
    is_crowded = threads < hardware.cpu.budget
    assert not is_crowded or says(
        choice.reason, "other-programs-use-cpus", f"{hardware.cpu.neighbors:.1f}", hardware.cpu.affinity
    )


@pytest.mark.parametrize(("busy", "expected"), [((10.0, 10.3), 1.5), ((10.0, 14.0), 2.0), ((None, 14.0), 0.0)])
def test_the_cpus_that_others_use(
    monkeypatch: pytest.MonkeyPatch, busy: tuple[float | None, float], expected: float
) -> None:
    moments, counts = iter((5.0, 5.2)), iter(busy)
    monkeypatch.setenv(neighbors.SWITCH, "on")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(cpu_starvation, "read_busy_seconds", lambda cpus: next(counts))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert neighbors.add_neighbors(read_machine()).cpu.neighbors == pytest.approx(expected)
    monkeypatch.setenv(neighbors.SWITCH, "off")
    assert neighbors.add_neighbors(read_machine()).cpu.neighbors == 0.0
