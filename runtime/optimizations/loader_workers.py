"""Prepares batches in worker processes: pays where preparing a batch is dear and CPUs are idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from runtime.optimizations import Choice, Effect, Stage, Value

if TYPE_CHECKING:
    from runtime.hardware import Hardware
    from runtime.job import Job
    from runtime.workload import Workload

STAGE = Stage.LOADER
EFFECT = Effect.EXACT
OFF = 0
Values = Annotated[int, Field(ge=0, le=64)]

MOST = 16
SHARE_PER_WORKER = 32 << 20
"""Shared memory that a worker's batches in flight may need, in bytes."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """None on a CPU, where workers take the CPUs that compute; on a GPU the budget less one."""
    if hardware.gpu is None:
        return Choice(0, "on a CPU, workers take the CPUs that compute")
    if workload is not None and workload.decoded:
        return Choice(0, "the data is in memory: a batch is one gather")
    workers = min(MOST, hardware.cpu.budget - 1)
    shm = hardware.storage.shm
    if shm is not None and workers * SHARE_PER_WORKER > shm:
        workers = shm // SHARE_PER_WORKER
        return Choice(workers, f"as many as /dev/shm ({shm >> 20} MiB) has room for")
    return Choice(workers, f"the CPU budget of {hardware.cpu.budget} less the one that drives the GPU")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Workers hand over batches through /dev/shm and die of a bus error when it is full."""
    shm = hardware.storage.shm
    if int(value) and shm is not None and int(value) * SHARE_PER_WORKER > shm:
        return f"/dev/shm has {shm >> 20} MiB, enough for {shm // SHARE_PER_WORKER} workers (set limits.shm)"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Not contested until samples are decoded from files."""
    return [choose(job, hardware, workload).value]


def apply(run: Any, value: Value) -> None:
    """Tell the batches how many workers to start."""
    run.batches.workers = int(value)


def seen(run: Any) -> Value:
    """What the batches were told."""
    return int(run.batches.workers)
