"""Computes the outputs that `feature_cache` keeps in bf16 if the chip has matrix units for it.

They are computed once, without gradients, and kept in fp32; the rest of the network computes in the format of
`precision`. The error of a kept number is bf16's, at most about 1 %, and the same in every epoch.
"""

from __future__ import annotations

from typing import Literal

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import AssembledRun, Choice, Effect, Stage, Value, feature_cache, precision

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = "fp32"
lacks = feature_cache.lacks
UNMEASURED = "the prefix is computed only once"
Values = Literal["fp32", "bf16"]

MIN_FLOPS = 1e11
"""FLOPs over all samples, about a second on two cores. Below, there is nothing to gain, and networks this small can be
slower in bf16.
"""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose bf16 for a large prefix on AMX or tensor cores with bf16, unless the job requests another precision."""
    obstacle = refuse(job, hardware, workload, "bf16")
    if obstacle:
        return Choice("fp32", obstacle)
    cache = feature_cache.choose(job, hardware, workload)
    if job.optimize.get("feature_cache", "auto") == "auto" and not cache.value:
        return Choice("fp32", f"feature_cache is not used: {cache.reason}")
    requested = job.optimize.get("precision", "auto")
    if requested not in ("auto", "bf16"):
        return Choice("fp32", f"optimize.precision is {requested}")
    unit = _unit(hardware)
    if unit is None:
        return Choice("fp32", "without bf16 matrix units it is often slower; used only if requested")
    if workload is not None and workload.prefix_work * workload.prefix_bytes < MIN_FLOPS:
        return Choice("fp32", "computing the cached features once takes too little time to matter")
    return Choice("bf16", f"{unit}; the cached features are computed once, without gradients")


def _unit(hardware: Hardware) -> str | None:
    """Name the matrix unit for bf16; None if there is none."""
    if hardware.gpu is None:
        return "this CPU has bf16 matrix units (AMX)" if "amx_bf16" in hardware.cpu.flags else None
    return f"{hardware.gpu.name} has bf16 tensor cores" if hardware.gpu.capability >= (8, 0) else None


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: if no outputs can be cached, or the chip does not support the format."""
    # The cache's own choice is not consulted: it depends on free memory, which may differ when a run is resumed.
    off = job.optimize.get("feature_cache") is False
    obstacle = "optimize.feature_cache is false" if off else feature_cache.refuse(job, hardware, workload, True)
    if obstacle:
        return f"feature_cache is not used: {obstacle}"
    return precision.refuse(job, hardware, workload, value)


def apply(run: AssembledRun, value: Value) -> None:
    """Run the prefix under autocast."""
    import torch

    run.prefix_dtype = torch.bfloat16


def effective(run: AssembledRun) -> Value:
    """Return the format of the prefix's computation."""
    return OFF if run.prefix_dtype is None else "bf16"
