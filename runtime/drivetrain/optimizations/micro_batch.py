"""Splits the optimizer's batch into micro-batches: less memory at the same batch size, sometimes better cache use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload

STAGE = Stage.STEP
IN_LOOP = True
OFF = "off"
REDRAWS = True
"""Dropout draws other random numbers for parts of a batch than for the whole."""
Values = Annotated[int, Field(ge=1)] | Literal["off"]


def EFFECT(workload: Workload | None) -> Effect:
    """Return rounding, or another training with BatchNorm, whose statistics splitting changes."""
    return Effect.TRAINING if workload is not None and workload.has("BatchNorm", "SyncBatchNorm") else Effect.ROUNDING


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose the whole batch; if the job says `auto`, the largest size that fits is searched before the first step."""
    searched = ", if the search finds that it fits" if job.optimize.get("micro_batch") == "auto" else ""
    batch = "the whole batch" if job.train.batch_size == "auto" else f"the whole batch of {job.train.batch}"
    if workload is not None and workload.indivisible:
        return Choice(OFF, f"{batch} at once: {workload.indivisible}")
    return Choice(OFF, f"{batch} at once{searched}")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: a micro-batch larger than the batch; any, if the loss cannot
    be put together from the losses of micro-batches.
    """
    if workload is not None and workload.indivisible:
        return f"{workload.indivisible}; return one value for each sample, or give weight_of(targets)"
    if job.train.batch_size != "auto" and int(value) > job.train.batch:
        return f"train.batch_size is {job.train.batch}, and a micro-batch cannot be larger"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure: smaller sizes, which may fit the caches better, unless they change the training."""
    if EFFECT(workload) is Effect.TRAINING or (workload is not None and workload.indivisible):
        return [OFF]
    return [OFF, *(size for size in (16, 8) if size < job.train.batch)]


def apply(run: NetworkRun, value: Value) -> None:
    """Set the number of samples per forward pass; never called with `off`."""
    run.step.use_micro_batch(int(value))


def effective(run: NetworkRun) -> Value:
    """Return the number of samples per forward pass."""
    return run.step.forward.micro_batch or OFF
