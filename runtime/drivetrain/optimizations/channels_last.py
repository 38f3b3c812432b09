"""Stores images in channels_last layout, which spares convolution kernels a conversion."""

from __future__ import annotations

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import Choice, Effect, NetworkRun, Stage, Value
from drivetrain.tasks import modality_of

STAGE = Stage.MODEL
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = False
Values = bool
MAX_ERROR_LETTERS = 120
"""Letters of torch's error that are shown."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on for convolutions over images, except on GPUs without tensor cores."""
    if not (workload or modality_of(job).expected).has("Conv2d"):
        return Choice(OFF, "the network has no 2D convolution")
    if workload and workload.layout_obstacle:
        return Choice(OFF, _describe_layout_failure(workload))
    if hardware.gpu is not None and hardware.gpu.capability < (7, 0):
        return Choice(OFF, "convolution kernels of this GPU are faster in NCHW layout")
    if hardware.system == "Darwin":
        reason = "no gain is known with torch's convolutions for macOS; used only if measured faster or requested"
        return Choice(OFF, reason)
    reason = "convolutions need no reordering in NHWC layout"
    if hardware.gpu:
        return Choice(True, f"cuDNN {reason}")
    if hardware.cpu.architecture == "aarch64":
        return Choice(True, f"oneDNN's Arm Compute Library: its {reason}")
    return Choice(True, f"oneDNN {reason}")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without convolutions, whose four-dimensional weights have this layout."""
    if workload is not None and not workload.has("Conv2d"):
        return "the network has no 2D convolution, so the setting would have no effect"
    if workload is not None and workload.layout_obstacle:
        return f"{_describe_layout_failure(workload)}; x.flatten(1) or x.reshape work in every layout, where x.view does not"
    return None


def _describe_layout_failure(workload: Workload) -> str:
    error_text = workload.layout_obstacle[:MAX_ERROR_LETTERS]
    return f"the network fails in this layout, not in the usual one: {error_text}"


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure, if there are convolutions: up to 1.5x faster, sometimes slower."""
    possible = refuse(job, hardware, workload, True) is None
    return [True, OFF] if possible else [OFF]


def apply(run: NetworkRun, value: Value) -> None:
    """Convert the weights, and each batch of images before the forward pass."""
    import torch

    run.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run.step.forward.memory_format = torch.channels_last


def effective(run: NetworkRun) -> Value:
    """Return whether the weights of the convolutions are in channels_last layout."""
    import torch

    # With a single channel or a single pixel both layouts are the same, and torch may report either.
    weights = [p for p in run.model.parameters() if p.ndim == 4 and min(p.shape[1:]) > 1]
    return bool(weights) and all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
