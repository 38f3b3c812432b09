"""Counts the processes of a run, chooses their GPUs, and names the environment variables that describe them."""

from __future__ import annotations

from dataclasses import replace

from drivetrain.distributed.placement import Placement
from drivetrain.errors import DeviceError
from drivetrain.hardware.facts import Hardware
from drivetrain.hardware.gpu_selection import GpuRequest
from drivetrain.job import Job

RANK = "DRIVETRAIN_RANK"
"""Environment variable with the rank of this process."""
LOCAL_RANK = "DRIVETRAIN_LOCAL_RANK"
"""Environment variable with the number of this process among the processes of its supervisor."""
WORLD_SIZE = "DRIVETRAIN_RANKS"
"""Environment variable with the number of processes."""
SOCKET = "DRIVETRAIN_STORE_SOCKET"
"""Environment variable of rank 0 with the descriptor of the store's socket; missing if the starter keeps the store."""
NODES = "DRIVETRAIN_NODES"
"""Environment variable with the number of supervisors, if there are several."""


def count_trainers(job: Job, hardware: Hardware) -> int:
    """Count the training processes that one supervisor starts: one per GPU, or without GPUs the number in the job.

    An embedded training uses its own process, and a supervisor that shares its machine with others starts one.
    """
    if job.task == "python" or hardware.shared_by > 1:
        return 1
    return len(hardware.gpus) or job.limits.processes or 1


def count_local_ranks(job: Job, hardware: Hardware) -> int:
    """Count the training processes of this run that share this machine's CPUs, memory and disk."""
    return count_trainers(job, hardware) * hardware.shared_by


def seems_alone(job: Job, hardware: Hardware) -> bool:
    """Return whether the run probably has one process; this is not certain before the machines meet."""
    return count_local_ranks(job, hardware) == 1 and hardware.machines == 1 and not job.limits.several_nodes


def check_world_size(job: Job, hardware: Hardware) -> None:
    """Refuse a job whose number of processes differs from the number of GPUs; raises SpecError."""
    requested, used = job.limits.processes, len(hardware.gpus)
    if requested and used and requested != used * hardware.shared_by:
        raise job.spec_error(
            ("limits", "processes"),
            f"is {requested}, and {used} GPUs are used",
            "one process for each GPU",
            "remove it, and choose GPUs with limits.gpus",
        )


def choose_gpus(requested: GpuRequest, hardware: Hardware, placement: Placement | None) -> GpuRequest:
    """Choose the GPUs of a supervisor: all requested GPUs, or the GPU with its local number if it is one of several.

    Args:
        requested: value of `limits.gpus`.
        hardware: hardware of the whole machine.
        placement: place of this supervisor; None if it is the only one.

    Raises:
        DeviceError: if there are fewer GPUs than supervisors.
    """
    if placement is None or requested == "none" or not hardware.gpus:
        return requested
    indices = [gpu.index for gpu in hardware.gpus]
    if len(indices) == 1 and isinstance(requested, str):
        return requested  # the starter shows each process only its own GPU
    listed = indices if isinstance(requested, str) else list(requested)
    if len(listed) < placement.local_supervisors:
        raise DeviceError(
            f"{placement.local_supervisors} processes were started on this machine, and they have {len(listed)} GPUs",
            "one process for each GPU",
            f"start {len(listed)} processes here: torchrun --nproc-per-node {len(listed)}; or set limits: {{gpus: none}}",
        )
    return [listed[placement.local_index]]


def share_hardware(hardware: Hardware, placement: Placement | None) -> Hardware:
    """Return the hardware with the number of supervisors on this machine and of machines in this run."""
    if placement is None:
        return hardware
    machines = placement.supervisors // placement.local_supervisors
    return replace(hardware, shared_by=placement.local_supervisors, machines=machines)
