"""Lets cuDNN benchmark its convolution kernels for each shape and use the fastest; best with constant shapes."""

from __future__ import annotations

from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload
from drivetrain.optimizations.precision import tensor_cores
from drivetrain.tasks import modality_of

STAGE = Stage.MODEL
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = False
GPU_ONLY = True
Values = bool

TRIED_KERNELS = 3
"""Kernels that cuDNN tries for each convolution, in the order of its own estimate; torch's default of 10 takes seconds."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Keep it off: it costs seconds at the start, and only a measurement shows whether a run gets them back."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(OFF, obstacle)
    if hardware.gpu and not tensor_cores(hardware.gpu) and hardware.gpu.capability >= (7, 0):
        return Choice(OFF, "on GTX 16 GPUs cuDNN's benchmark has picked slow kernels")
    reason = "trying all kernels of a layer takes seconds at the start; used only if measured faster or requested"
    return Choice(OFF, reason)


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: on a CPU, if deterministic, with samples of many sizes, without
    convolutions.
    """
    if hardware.gpu is None:
        return "cuDNN needs a GPU; this job runs on a CPU"
    if job.train.is_deterministic(on_gpu=True):
        return "train.deterministic needs the same kernels in every run, and benchmark results vary"
    if not (workload or modality_of(job).expected).has("Conv"):
        return "the network has no convolution"
    if workload is not None and workload.ragged:
        return "samples have different lengths, and every new length would be benchmarked again"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure: all, wherever it is possible: the kernel that wins alone can be slower within a step."""
    return [OFF] if refuse(job, hardware, workload, True) else [True, OFF]


def apply(run: NetworkRun, value: Value) -> None:
    """Turn it on."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = TRIED_KERNELS


def effective(run: NetworkRun) -> Value:
    """Return whether cuDNN benchmarks kernels."""
    import torch

    return torch.backends.cudnn.benchmark
