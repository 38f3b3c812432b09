"""Sets torch's process-wide settings for a run, independent of earlier runs in the process."""

from __future__ import annotations

import warnings

import torch

from drivetrain.hardware import gpu_selection
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.system import torch_settings

_IGNORED_WARNINGS = (
    r"TensorFloat32 tensor cores .* available but not enabled",
    r"\s*Online softmax is disabled on the fly",
    r"Warning: Profiler clears events",
    r"scatter_add_\w+ does not have a deterministic implementation",
    r"This instance was constructed with capturable=True",
)
"""Warnings of torch about decisions of the plan, or without meaning here, such as about the order of integer sums."""


def apply_settings(job: Job, hardware: Hardware, device: torch.device) -> None:
    """Apply the job's settings and reset all others; optimizations may change them afterwards."""
    torch_settings.reset_switches()
    for message in _IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    deterministic = job.train.is_deterministic(on_gpu=device.type == "cuda")
    torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    allowed = _count_allowed_bytes(job, hardware)
    if allowed is not None:
        total = torch.cuda.get_device_properties(device).total_memory  # one or two percent less than NVML's
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), device)


def _count_allowed_bytes(job: Job, hardware: Hardware) -> int | None:
    """Return the GPU memory in bytes that tensors may use; None if the GPU itself is the only limit.

    Under WSL2 the driver silently moves memory to the host instead of refusing it, and steps become 5 to 20 times
    slower (microsoft/WSL#11050); with a limit they run out of memory, which halves the micro-batch.
    """
    if hardware.gpu is None or (job.limits.gpu_memory is None and not hardware.wsl2):
        return None
    allowed = gpu_selection.count_allowed_bytes(hardware.gpu, job.limits.gpu_memory)
    return min(allowed, max(0, hardware.gpu.free - hardware.gpu.memory // 20)) if hardware.wsl2 else allowed


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished the queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
