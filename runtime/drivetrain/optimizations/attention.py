"""Selects the kernels of scaled dot-product attention: the deterministic ones, or those that use least memory."""

from __future__ import annotations

from typing import Literal

from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload

STAGE = Stage.MODEL
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = "auto"
GPU_ONLY = True
UNMEASURED = "torch picks the fastest of the allowed kernels"
Values = Literal["auto", "flash", "efficient", "math"]

_KERNELS = {
    "auto": (True, True, True),
    "flash": (True, False, False),
    "efficient": (False, True, False),
    "math": (False, False, False),
}
"""By value: whether flash, memory-efficient and cuDNN kernels are allowed; plain math always is."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose deterministic kernels for a deterministic job, memory-efficient ones on chips without flash attention."""
    gpu = hardware.gpu
    if not _attends(workload):
        return Choice("auto", "the network has no attention layer")
    if gpu is None:
        return Choice("auto", "on a CPU torch has one fused kernel and uses it where possible")
    if gpu.capability >= (8, 0):
        if job.train.is_deterministic(on_gpu=True):
            return Choice("flash", "flash without a mask, else math: the other backward kernels are not deterministic")
        return Choice("auto", "torch picks flash, memory-efficient or cuDNN by shape")
    if job.train.is_deterministic(on_gpu=True):
        return Choice("math", "flash needs capability 8.0, and the memory-efficient backward pass is not deterministic")
    reason = "flash needs capability 8.0; memory-efficient attention works from 5.0, with memory linear in length"
    return Choice("efficient", reason)


def _attends(workload: Workload | None) -> bool:
    """Return whether there is an attention layer; assumed until the network is known."""
    return workload is None or any("Attention" in layer for layer in workload.layers)


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: on a CPU; flash below capability 8.0; any value without attention."""
    if hardware.gpu is None:
        return "a CPU has only one attention kernel"
    if not _attends(workload):
        return "the network has no attention layer, so the setting would have no effect"
    if value == "flash" and hardware.gpu.capability < (8, 0):
        chip = hardware.gpu
        return f"{chip.name} has capability {chip.capability[0]}.{chip.capability[1]}; flash attention needs 8.0"
    return None


def apply(run: NetworkRun, value: Value) -> None:
    """Set the kernels that torch may use."""
    from drivetrain.system import torch_settings

    torch_settings.allow_attention_kernels(*_KERNELS[str(value)])


def effective(run: NetworkRun) -> Value:
    """Return the kernels that torch may use."""
    from drivetrain.system import torch_settings

    now = torch_settings.list_attention_kernels()
    return next((name for name, kernels in _KERNELS.items() if kernels == now), "mixed")
