"""The world of a run: how many processes train together, and how they find each other."""

from __future__ import annotations

from runtime.errors import SpecError
from runtime.hardware.facts import Hardware
from runtime.job import Job

RANK = "DRIVETRAIN_RANK"
"""Environment variable: the rank of this process."""
WORLD_SIZE = "DRIVETRAIN_RANKS"
"""Environment variable: the number of processes."""
STORE = "DRIVETRAIN_MEETING"
"""Environment variable: the file through which the processes find each other."""


def world_size(job: Job, hardware: Hardware) -> int:
    """The number of training processes: one per GPU, else as in the job; an embedded training uses its own process."""
    if job.task == "python":
        return 1
    return len(hardware.gpus) or job.limits.processes or 1


def check_world_size(job: Job, hardware: Hardware) -> None:
    """Refuse a number of processes that differs from the number of GPUs.

    Raises:
        SpecError: if the job requests that.
    """
    requested, used = job.limits.processes, len(hardware.gpus)
    if requested and used and requested != used:
        raise SpecError(
            [
                job.problem(
                    ("limits", "processes"),
                    f"is {requested}, and {used} GPUs are used",
                    "one process for each GPU",
                    "leave it out, and choose GPUs with limits.gpus",
                )
            ]
        )
