"""Fresh: torch's settings of the whole process as a run begins with them, whatever an earlier one has left."""

from __future__ import annotations

import torch

from runtime import gpus
from runtime.hardware import Hardware
from runtime.job import Job
from runtime.optimizations import attention


def begin(job: Job, hardware: Hardware, device: torch.device) -> None:
    """What the job asks of torch, and for the rest what torch comes with; optimizations change it afterwards."""
    # The same as torch.use_deterministic_algorithms, which also imports the compiler: as long as torch itself.
    torch.set_deterministic_debug_mode("warn" if job.train.deterministic else "default")
    # Filling fresh memory is a debugging aid: nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    attention.allow(flash=True, efficient=True, cudnn=True)
    if hardware.gpu and job.limits.gpu_memory is not None:
        allowed = gpus.allowed(hardware.gpu, job.limits.gpu_memory)
        torch.cuda.set_per_process_memory_fraction(allowed / hardware.gpu.memory, device)
