"""The world of a run: how many processes train together, and how each of them finds the others."""

from __future__ import annotations

from runtime.errors import SpecError
from runtime.hardware.facts import Hardware
from runtime.job import Job

RANK = "DRIVETRAIN_RANK"
"""Environment variable: the number of this process."""
WORLD_SIZE = "DRIVETRAIN_RANKS"
"""Environment variable: the number of processes."""
STORE = "DRIVETRAIN_MEETING"
"""Environment variable: the file in which the processes find each other."""


def world_size(job: Job, hardware: Hardware) -> int:
    """How many processes train: one for each GPU that is used, else what the job says; a program trains in its own."""
    if job.task == "python":
        return 1
    return len(hardware.gpus) or job.limits.processes or 1


def check_world_size(job: Job, hardware: Hardware) -> None:
    """Refuse another number of processes than GPUs are used.

    Raises:
        SpecError: if the job asks for that.
    """
    asked, used = job.limits.processes, len(hardware.gpus)
    if asked and used and asked != used:
        raise SpecError(
            [
                job.problem(
                    ("limits", "processes"),
                    f"is {asked}, and {used} GPUs are used",
                    "one process for each GPU",
                    "leave it out, and choose GPUs with limits.gpus",
                )
            ]
        )
