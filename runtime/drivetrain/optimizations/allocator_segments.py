"""Lets CUDA's allocator use expandable segments, which reduces memory fragmentation."""

from __future__ import annotations

import re

from drivetrain.hardware import image_selection
from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload

# Before anything touches the GPU; the variable is not read earlier.
STAGE = Stage.LOADER
EFFECT = Effect.EXACT
OFF = False
GPU_ONLY = True
UNMEASURED = "no cost was ever found"
Values = bool

VARIABLE, SETTING = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
"""The older name of the variable, which every supported torch reads."""


_VGPU = re.compile(r"-\d+[ABCQ]$")
"""How the name of a share of a GPU ends that a hypervisor lends: NVIDIA A40-48C, GRID T4-16Q."""
WSL_DRIVER = 616
"""The first driver for Windows under which expandable segments work in WSL2 (pytorch#192330)."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on if a GPU is used whose driver can map memory piece by piece."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    assert hardware.gpu is not None
    if hardware.wsl2 and image_selection.parse_driver_major(hardware.gpu) < WSL_DRIVER:
        version = f"driver {hardware.gpu.driver} for Windows"
        return Choice(False, f"under WSL2 the first allocation fails before driver {WSL_DRIVER}: {version}")
    if _VGPU.search(hardware.gpu.name):
        return Choice(False, f"{hardware.gpu.name} is a vGPU; many of them cannot map memory piece by piece")
    return Choice(True, "avoids GPU memory fragmentation when batch sizes differ")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: on a CPU: it is a setting of CUDA's allocator."""
    if hardware.gpu is None:
        return "it configures the GPU allocator, and there is no GPU"
    return None


def environment(hardware: Hardware, value: Value) -> dict[str, str]:
    """Return the variable that the allocator reads before its first segment."""
    return {VARIABLE: SETTING} if value else {}


def effective(run: AssembledRun) -> Value:
    """Return the variable of this process."""
    from drivetrain.system import library_variables

    return run.device.type == "cuda" and SETTING in library_variables.read_allocator_settings()
