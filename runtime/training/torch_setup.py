"""Sets torch's process-wide settings for a run, whatever an earlier run in the process has left."""

from __future__ import annotations

import torch

from runtime.hardware import gpu_selection
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.system import torch_settings


def begin(job: Job, hardware: Hardware, device: torch.device) -> None:
    """Apply the job's settings, and defaults for the rest; optimizations may change them afterwards."""
    torch_settings.reset()
    torch.set_deterministic_debug_mode("warn" if job.train.deterministic else "default")
    if hardware.gpu and job.limits.gpu_memory is not None:
        allowed = gpu_selection.allowed_bytes(hardware.gpu, job.limits.gpu_memory)
        torch.cuda.set_per_process_memory_fraction(allowed / hardware.gpu.memory, device)
