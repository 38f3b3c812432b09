"""Gathers batches ahead, in memory that the GPU reads by itself: copies run beside the computing of the batch before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.optimizations import AssembledRun, Choice, Effect, Stage, Value, feature_cache, gpu_resident_data

if TYPE_CHECKING:
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

STAGE = Stage.LOADER
EFFECT = Effect.EXACT
OFF = False
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """On wherever batches come to a GPU from the host."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    if workload is not None and gpu_resident_data.wanted(job, hardware, workload):
        return Choice(False, "gpu_resident_data copies nothing from the host")
    return Choice(True, "the next batch is copied while the GPU computes this one")


def lacks(job: Job, hardware: Hardware) -> str | None:
    """It works on GPUs only."""
    return None if hardware.gpu else "no GPU"


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Only what is copied to a GPU can be pinned for it."""
    if not value:
        return None
    if hardware.gpu is None:
        return "there is no GPU that batches are copied to"
    if workload is not None and feature_cache.choose(job, hardware, workload).value:
        return "feature_cache computes what batches consist of, on the GPU"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Not contested."""
    return [choose(job, hardware, workload).value]


def apply(run: AssembledRun, value: Value) -> None:
    """Tell the batches to come in pinned memory."""
    run.batches.pin = True


def effective(run: AssembledRun) -> Value:
    """What the batches were told."""
    return bool(run.batches.pin)
