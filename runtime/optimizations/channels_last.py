"""Stores images in channels_last layout, which spares convolution kernels a conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.optimizations import AssembledRun, Choice, Effect, Stage, Value, sharding
from runtime.optimizations.interface import similar_work

if TYPE_CHECKING:
    from runtime.hardware.calibration import Probe
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = False
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """On for convolutions over images, except on GPUs without tensor cores."""
    if (workload is None and not job.task.startswith("image")) or (workload and not workload.has("Conv2d")):
        return Choice(False, "the network has no 2D convolution")
    if workload and workload.layout_obstacle:
        return Choice(False, _failed(workload))
    if why := sharding.obstacle(job, hardware, workload):
        return Choice(False, why)
    if hardware.gpu is not None and hardware.gpu.capability < (7, 0):
        return Choice(False, "convolution kernels of this GPU are faster in NCHW layout")
    if hardware.system == "Darwin":
        return Choice(
            False, "no gain is known with torch's convolutions for macOS; used only if measured faster or requested"
        )
    kernels = "cuDNN" if hardware.gpu else "oneDNN"
    if hardware.gpu is None and hardware.cpu.architecture == "aarch64":
        kernels = "oneDNN's Arm Compute Library: its"
    return Choice(True, f"{kernels} convolutions need no reordering in NHWC layout")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Without convolutions: only four-dimensional weights have this layout."""
    if value and workload is not None and not workload.has("Conv2d"):
        return "the network has no 2D convolution, so the setting would have no effect"
    if value and workload is not None and workload.layout_obstacle:
        return f"{_failed(workload)}; x.flatten(1) or x.reshape work in every layout, where x.view does not"
    return sharding.obstacle(job, hardware, workload) if value else None


def _failed(workload: Workload) -> str:
    return f"the network fails in this layout, not in the usual one: {workload.layout_obstacle[:120]}"


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Measured if there are convolutions: up to 1.5x faster, sometimes slower."""
    possible = refuse(job, hardware, workload, True) is None
    return [True, False] if possible else [False]


def probed(job: Job, hardware: Hardware, workload: Workload | None) -> tuple[Probe, ...]:
    """The layout of a convolutional network, in the number format of the job."""
    asked = job.optimize.get("precision", "auto")
    beside = "" if asked in ("auto", "fp32") else f"precision={asked}"
    return similar_work.nearest(job, hardware, workload, "channels_last", beside)


def apply(run: AssembledRun, value: Value) -> None:
    """Convert the weights, and each batch of images before the forward pass."""
    import torch

    run.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run.configure_step(memory_format=torch.channels_last)


def effective(run: AssembledRun) -> Value:
    """Whether the weights of the convolutions are in channels_last layout."""
    import torch

    weights = [p for p in run.model.parameters() if p.ndim == 4 and min(p.shape[1:]) > 1]
    return bool(weights) and all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
