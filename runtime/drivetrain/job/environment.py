"""The environment variables that a job names: whether they are there."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.errors import SpecError
from drivetrain.job.job import Job


def check_environment(job: Job, environ: Mapping[str, str]) -> None:
    """Check that every variable that the job names is set.

    Args:
        job: the checked spec.
        environ: the variables of the process that trains, or that starts the container.

    Raises:
        SpecError: with all that are missing.
    """
    missing = [name for name in job.environment if not environ.get(name)]
    if missing:
        location = job.document.place(("environment",))
        raise SpecError(
            f"{location}: environment: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set here",
            "names of variables that are set where the command is called",
            f"export {missing[0]}=..., or remove the name from the job",
        )
