"""Prepares batches in worker processes, which helps if preparation is expensive and CPUs are idle."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from drivetrain.distributed import world
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import BATCHES_PER_WORKER, Workload
from drivetrain.optimizations import AssembledRun, Choice, Effect, Stage, Value, gpu_resident_data

STAGE = Stage.LOADER
EFFECT = Effect.EXACT
OFF = 0
MOST_ALLOWED = 64
Values = Annotated[int, Field(ge=0, le=MOST_ALLOWED)]

MAX_DEFAULT_WORKERS = 16
UNKNOWN_BATCH = 10 << 20
"""Assumed bytes of a batch until the data is known."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose none on a CPU, where workers compete with the computation; on a GPU the CPU budget less one."""
    if _streams(job, workload):
        return Choice(0, "an iterable is read in its order, by the training process")
    if hardware.gpu is None:
        return Choice(0, "on a CPU, workers compete with training for the same cores")
    if workload is not None and gpu_resident_data.is_expected(job, hardware, workload):
        return Choice(0, "gpu_resident_data assembles batches on the GPU")
    if workload is not None and workload.decoded:
        return Choice(0, "the data is in memory, so a batch is a single indexing operation")
    together = world.count_local_ranks(job, hardware)
    workers = max(0, min(MAX_DEFAULT_WORKERS, hardware.cpu.budget // together - 1))
    shm = hardware.storage.shm
    room = _room(job, shm, workload)
    if room < workers:
        return Choice(room, f"as many as fit into /dev/shm ({(shm or 0) >> 20} MiB)")
    shared = f", shared by {together} processes," if together > 1 else ""
    return Choice(workers, f"the {hardware.cpu.budget} available CPUs{shared} minus one for the training process")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: if batches do not fit into /dev/shm, where workers would die."""
    if _streams(job, workload):
        return "the training data is an iterable, which is read in its order by the training process"
    shm = hardware.storage.shm
    room = _room(job, shm, workload)
    if int(value) > room:
        return f"/dev/shm has {(shm or 0) >> 20} MiB, enough for {room} workers (set limits.shm)"
    return None


def _streams(job: Job, workload: Workload | None) -> bool:
    """Return whether the training data is an iterable; for a job this is known once its data is open."""
    return getattr(job.data, "order", "") == "stream" or (workload is not None and workload.streams)


def _room(job: Job, shm: int | None, workload: Workload | None) -> int:
    """Return the number of workers whose batches fit into shared memory."""
    if shm is None:
        return MOST_ALLOWED
    batch = workload.sample_bytes * job.train.batch if workload else UNKNOWN_BATCH
    return min(MOST_ALLOWED, shm // max(1, BATCHES_PER_WORKER * batch))


def apply(run: AssembledRun, value: Value) -> None:
    """Set the number of workers that the loader starts."""
    run.batches.workers = int(value)


def effective(run: AssembledRun) -> Value:
    """Return the number of workers that the loader starts."""
    return int(run.batches.workers)
