"""Computes the outputs that `feature_cache` keeps in bf16 where the chip has matrix units for it.

They are computed once, without gradients, and kept in fp32; what follows computes in the format of `precision`. The
error of a kept number is that of bf16, at most about 1 %, and the same in every epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from runtime.optimizations import AssembledRun, Choice, Effect, Stage, Value, feature_cache, precision

if TYPE_CHECKING:
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = "fp32"
Values = Literal["fp32", "bf16"]

ENOUGH = 1e11
"""Operations of all samples, about a second of two cores, below which there is nothing to gain; and parts that are this
small can be slower in bf16."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """bf16 for a large prefix on AMX and on tensor cores that have it, unless the job asks for another precision."""
    obstacle = refuse(job, hardware, workload, "bf16")
    if obstacle:
        return Choice("fp32", obstacle)
    kept = feature_cache.choose(job, hardware, workload)
    if job.optimize.get("feature_cache", "auto") == "auto" and not kept.value:
        return Choice("fp32", f"nothing is computed once and kept: {kept.reason}")
    asked = job.optimize.get("precision", "auto")
    if asked not in ("auto", "bf16"):
        return Choice("fp32", f"optimize.precision is {asked}")
    unit = _unit(hardware)
    if unit is None:
        return Choice("fp32", "without matrix units for bf16 it is often slower; by request")
    if workload is not None and workload.prefix_work * workload.prefix_bytes < ENOUGH:
        return Choice("fp32", "computing the kept outputs once takes no time worth saving")
    return Choice("bf16", f"{unit}; what is kept is computed once, without gradients")


def _unit(hardware: Hardware) -> str | None:
    """What multiplies bf16 matrices here, if anything does."""
    if hardware.gpu is None:
        return "this CPU has matrix units for bf16 (AMX)" if "amx_bf16" in hardware.cpu.flags else None
    return f"{hardware.gpu.name} has bf16 tensor cores" if hardware.gpu.capability >= (8, 0) else None


def lacks(job: Job, hardware: Hardware) -> str | None:
    """It is about the outputs that feature_cache keeps."""
    return feature_cache.lacks(job, hardware)


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """There must be outputs that can be kept, and a chip that has the format."""
    if value == OFF:
        return None
    # Not whether the cache would be chosen: that hangs on the memory that is free when a run goes on.
    off = job.optimize.get("feature_cache") is False
    obstacle = "optimize.feature_cache is false" if off else feature_cache.refuse(job, hardware, workload, True)
    if obstacle:
        return f"nothing is computed once and kept: {obstacle}"
    return precision.refuse(job, hardware, workload, value)


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Not contested: it is over before a second epoch could show what it was worth."""
    return [choose(job, hardware, workload).value]


def apply(run: AssembledRun, value: Value) -> None:
    """Autocast around the prefix."""
    import torch

    run.prefix_dtype = torch.bfloat16


def effective(run: AssembledRun) -> Value:
    """The format in which the prefix computes."""
    return OFF if run.prefix_dtype is None else "bf16"
