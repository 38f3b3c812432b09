"""The processes of a run: their number, their GPUs, and the variables from which each learns its place."""

from __future__ import annotations

from dataclasses import replace

from drivetrain.distributed.placement import Placement
from drivetrain.errors import DeviceError
from drivetrain.hardware.facts import Hardware
from drivetrain.hardware.gpu_selection import GpuRequest
from drivetrain.job import Job

RANK = "DRIVETRAIN_RANK"
"""Environment variable: the rank of this process."""
LOCAL_RANK = "DRIVETRAIN_LOCAL_RANK"
"""Environment variable: the number of this process among those that this supervisor has started."""
WORLD_SIZE = "DRIVETRAIN_RANKS"
"""Environment variable: the number of processes."""
MEETING = "DRIVETRAIN_MEETING"
"""Environment variable: host:port of the store through which the processes find each other."""
SOCKET = "DRIVETRAIN_MEETING_SOCKET"
"""Environment variable of rank 0: descriptor of the socket that listens there; absent if the starter keeps the store."""
NODES = "DRIVETRAIN_NODES"
"""Environment variable: the number of supervisors, if there are several."""


def count_trainers(job: Job, hardware: Hardware) -> int:
    """Return the number of training processes that one supervisor starts: one per GPU, without GPUs as in the job.

    An embedded training uses its own process, and a supervisor that shares its machine with others starts one.
    """
    if job.task == "python" or hardware.shared_by > 1:
        return 1
    return len(hardware.gpus) or job.limits.processes or 1


def count_local_ranks(job: Job, hardware: Hardware) -> int:
    """Return the number of training processes of this run that share this machine's CPUs, memory and disk."""
    return count_trainers(job, hardware) * hardware.shared_by


def seems_alone(job: Job, hardware: Hardware) -> bool:
    """Return whether the run has one process, as far as is known before the machines meet."""
    return count_local_ranks(job, hardware) == 1 and not job.limits.several_nodes


def check_world_size(job: Job, hardware: Hardware) -> None:
    """Refuse a number of processes that differs from the number of GPUs; raises SpecError if the job requests that."""
    requested, used = job.limits.processes, len(hardware.gpus)
    if requested and used and requested != used * hardware.shared_by:
        raise job.spec_error(
            ("limits", "processes"),
            f"is {requested}, and {used} GPUs are used",
            "one process for each GPU",
            "leave it out, and choose GPUs with limits.gpus",
        )


def choose_gpus(requested: GpuRequest, hardware: Hardware, placement: Placement | None) -> GpuRequest:
    """The GPUs of a supervisor: all requested ones, or only the one with its local number if it is one of several.

    Args:
        requested: `limits.gpus`.
        hardware: the whole machine.
        placement: the place of this supervisor; None if it is the only one.

    Raises:
        DeviceError: if there are fewer GPUs than supervisors.
    """
    if placement is None or requested == "none" or not hardware.gpus:
        return requested
    indices = [gpu.index for gpu in hardware.gpus]
    if len(indices) == 1 and isinstance(requested, str):
        return requested  # the starter shows each process its own
    listed = indices if isinstance(requested, str) else list(requested)
    if len(listed) < placement.local_supervisors:
        raise DeviceError(
            f"{placement.local_supervisors} processes were started on this machine, and they have {len(listed)} GPUs",
            "one process for each GPU",
            f"start {len(listed)} here: torchrun --nproc-per-node {len(listed)}; or set limits: {{gpus: none}}",
        )
    return [listed[placement.local_index]]


def share_hardware(hardware: Hardware, placement: Placement | None) -> Hardware:
    """Return the machine as one of several supervisors sees it: shared."""
    return replace(hardware, shared_by=placement.local_supervisors) if placement else hardware
