"""Computes with as many threads as the container has CPUs; under a CPU quota more threads slow each other down."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

from pydantic import Field

from drivetrain.distributed import world
from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload

STAGE = Stage.PROCESS
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = "off"
UNMEASURED = "it is fixed when a process starts"
Values = Annotated[int, Field(ge=1)] | Literal["off"]
BUSY_SHARE = 0.5
"""Share of the CPUs that other programs use; above it there are as many threads as idle CPUs."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose the CPU budget or its fastest physical cores; the idle CPUs if other programs use half of them or more."""
    cpu, threads = hardware.cpu, threads_of(hardware)
    together = world.count_local_ranks(job, hardware)
    if together > 1:
        return Choice(max(1, threads // together), f"the {threads} CPUs are shared by {together} processes")
    idle_cpus = int(cpu.affinity - cpu.neighbors)
    if cpu.neighbors >= BUSY_SHARE * cpu.affinity and idle_cpus < threads:
        reason = f"other programs use {cpu.neighbors:.1f} of {cpu.affinity} CPUs, and threads that wait for a CPU hold up the others"
        return Choice(max(1, idle_cpus), reason)
    if threads < cpu.budget:
        reason = f"one thread per physical core: {cpu.cores} for {cpu.budget} logical CPUs"
        if threads == cpu.fast_cores:
            reason = f"the {threads} fast ones of {cpu.cores} cores: every thread gets an equal share, so slow cores make the others wait"
        return Choice(threads, reason)
    if cpu.quota is not None and cpu.quota < min(cpu.affinity, cpu.cpuset or cpu.affinity):
        reason = f"the CPU quota of {cpu.quota:g}, rounded down, at least 1; the host has {cpu.host} CPUs"
        return Choice(threads, reason)
    reason = "the one CPU" if threads == 1 else f"all {threads} CPUs"
    return Choice(threads, f"{reason} available to this process")


def threads_of(hardware: Hardware) -> int:
    """Return the number that `choose` chooses, also for processes without a job."""
    cpu = hardware.cpu
    return max(1, min(cpu.budget, cpu.cores, cpu.fast_cores or cpu.cores))


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: more threads than CPUs in the affinity mask."""
    if int(value) > hardware.cpu.affinity:
        return f"only {hardware.cpu.affinity} CPUs are available to this process"
    return None


def environment(hardware: Hardware, value: Value) -> dict[str, str]:
    """Return the variables that OpenMP, MKL, OpenBLAS and the compiler's worker pool read when they are loaded."""
    if value == OFF:
        return {}
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    return dict.fromkeys(names, str(value))


def apply(run: NetworkRun, value: Value) -> None:
    """Set torch's pools: intra-op to the value, inter-op to 1."""
    import torch

    torch.set_num_threads(int(value))
    if torch.get_num_interop_threads() != 1:
        # A host program may have started this pool already; a network in eager mode does not use it.
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(1)


def effective(run: NetworkRun) -> Value:
    """Return the size of torch's intra-op pool."""
    import torch

    return torch.get_num_threads()
