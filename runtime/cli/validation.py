"""`drivetrain validate`: job files, and the cells of their CSV files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from runtime.errors import DrivetrainError
from runtime.job_spec import data_cells
from runtime.job_spec import load as job_spec


def validate(paths: Sequence[Path], assignments: Sequence[str]) -> int:
    """Check job files; returns the exit code of the first that is not valid, or 0.

    Raises:
        DrivetrainError: if there is only one, and it is not valid.
    """
    code = 0
    for path in paths:
        try:
            _validate(path, assignments)
        except DrivetrainError as error:
            if len(paths) == 1:
                raise
            print(error, file=sys.stderr)
            code = code or error.exit_code
    return code


def _validate(path: Path, assignments: Sequence[str]) -> None:
    job = job_spec.load(path, assignments)
    told = data_cells.check(job)
    print(f"{path}: valid ({job.name}, {job.task})")
    for note in (*job.notes, *told):
        print(f"  {note}")
