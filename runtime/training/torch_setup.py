"""Sets torch's process-wide settings for a run, whatever an earlier run in the process has left."""

from __future__ import annotations

import warnings

import torch

from runtime.hardware import gpu_selection
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.system import torch_settings

_EXPECTED = (
    r"TensorFloat32 tensor cores .* available but not enabled",
    r"\s*Online softmax is disabled on the fly",
    r"Warning: Profiler clears events",
    r"scatter_add_\w+ does not have a deterministic implementation",
)
"""Warnings of torch about what the plan has decided, or what does not matter here: integers are added in any order."""


def begin(job: Job, hardware: Hardware, device: torch.device) -> None:
    """Apply the job's settings, and defaults for the rest; optimizations may change them afterwards."""
    torch_settings.reset()
    for message in _EXPECTED:
        warnings.filterwarnings("ignore", message=message)
    deterministic = job.train.is_deterministic(on_gpu=device.type == "cuda")
    torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    if hardware.gpu and job.limits.gpu_memory is not None:
        allowed = gpu_selection.allowed_bytes(hardware.gpu, job.limits.gpu_memory)
        torch.cuda.set_per_process_memory_fraction(allowed / hardware.gpu.memory, device)
