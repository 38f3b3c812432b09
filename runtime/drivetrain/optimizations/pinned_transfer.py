"""Gathers batches ahead in pinned memory, so that the host goes on while they are copied to the GPU."""

from __future__ import annotations

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import AssembledRun, Choice, Effect, Stage, Value, feature_cache, gpu_resident_data

STAGE = Stage.LOADER
EFFECT = Effect.EXACT
OFF = False
GPU_ONLY = True
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on if batches are copied to a GPU."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    if workload is not None and gpu_resident_data.is_expected(job, hardware, workload):
        return Choice(False, "with gpu_resident_data nothing is copied from the host")
    return Choice(True, "batches are gathered ahead, and the host does not wait for their copy")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: if nothing is copied to a GPU."""
    if hardware.gpu is None:
        return "there is no GPU to copy batches to"
    if workload is not None and feature_cache.choose(job, hardware, workload).value:
        return "with feature_cache batches are already on the GPU"
    return None


def apply(run: AssembledRun, value: Value) -> None:
    """Make the loader deliver pinned batches; called with True alone."""
    run.batches.pin = True


def effective(run: AssembledRun) -> Value:
    """Return whether the loader delivers pinned batches."""
    return bool(run.batches.pin)
