"""`drivetrain validate`: job files, the cells of their CSV files, and the stores that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import DrivetrainError
from drivetrain.job_spec import data_cells
from drivetrain.job_spec import load_job as job_spec
from drivetrain.supervisor import remote_check
from drivetrain.system.console import say, say_error


def validate(paths: Sequence[Path], assignments: Sequence[str], *, remote: bool = False) -> int:
    """Check job files; returns the exit code of the first that is not valid, or 0.

    Args:
        paths: of the job files.
        assignments: `KEY=VALUE` over all of them.
        remote: whether the stores that they name are used, too.

    Raises:
        DrivetrainError: if there is only one, and it is not valid.
    """
    code = 0
    for path in paths:
        try:
            exit_code = _validate(path, assignments, remote=remote)
            code = code or exit_code
        except DrivetrainError as error:
            if len(paths) == 1:
                raise
            say_error(error)
            code = code or error.exit_code
    return code


def _validate(path: Path, assignments: Sequence[str], *, remote: bool) -> int:
    job = job_spec.load(path, assignments)
    data_notes = data_cells.check(job)
    say(f"{path}: valid ({job.name}, {job.task})")
    for note in (*job.notes, *data_notes):
        say(f"  {note}")
    if not remote:
        return 0
    wrong = remote_check.check(job, lambda line: say(f"  {line}"))
    for error in wrong:
        say_error(error)
    return wrong[0].exit_code if wrong else 0
