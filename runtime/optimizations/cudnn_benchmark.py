"""Lets cuDNN race its convolution kernels for each shape and keep the fastest: pays where shapes stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.optimizations import AssembledRun, Choice, Effect, Stage, Value
from runtime.optimizations.precision import tensor_cores

if TYPE_CHECKING:
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = False
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """On for convolutions over samples of one size, where the job does not ask for the same bits each time."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    if hardware.gpu and not tensor_cores(hardware.gpu) and hardware.gpu.capability >= (7, 0):
        return Choice(False, "on chips of the GTX 16 kind the race was seen to pick slow kernels")
    return Choice(True, "all samples have one size, so each race is run once")


def lacks(job: Job, hardware: Hardware) -> str | None:
    """It works on GPUs only."""
    return None if hardware.gpu else "no GPU"


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """A race has no certain winner, every new size is a race, and without a convolution there is none."""
    if not value:
        return None
    if hardware.gpu is None:
        return "cuDNN runs on GPUs, and this job runs on a CPU"
    if job.train.deterministic:
        return "train.deterministic asks for the same bits each time, and who wins a race is up to chance"
    if job.task.startswith(("text", "tabular")) if workload is None else not workload.has("Conv"):
        return "there is no convolution"
    if workload is not None and workload.ragged:
        return "samples have different lengths, and every new one would be a race"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Contested where it may be had: the race can pick a kernel that is slower beside others."""
    return [False] if refuse(job, hardware, workload, True) else [True, False]


def apply(run: AssembledRun, value: Value) -> None:
    """Switch the race on."""
    import torch

    torch.backends.cudnn.benchmark = True


def effective(run: AssembledRun) -> Value:
    """Whether cuDNN races."""
    import torch

    return torch.backends.cudnn.benchmark
