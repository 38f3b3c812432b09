"""`drivetrain validate`: job files, and the cells of their CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.errors import DrivetrainError
from drivetrain.job_spec import data_cells
from drivetrain.job_spec import load_job as job_spec
from drivetrain.system.console import say, say_error, say_json


def validate(paths: Sequence[Path], assignments: Sequence[str], *, as_json: bool = False) -> int:
    """Check job files; returns the exit code of the first that is not valid, or 0.

    Args:
        paths: the job files.
        assignments: `KEY=VALUE` that override values of all of them.
        as_json: whether to print JSON for a program, in addition to the errors as text.

    Raises:
        DrivetrainError: if there is only one, it is not valid, and no JSON is asked for.
    """
    results = []
    for path in paths:
        result: dict[str, Any] = {"file": str(path), "exit_code": 0}
        try:
            result |= _validate(path, assignments)
        except DrivetrainError as error:
            if len(paths) == 1 and not as_json:
                raise
            say_error(error)
            result |= error.to_json()
        results.append(result)
        if not as_json and "name" in result:
            _show(result)
    if as_json:
        say_json(results)
    return next((int(result["exit_code"]) for result in results if result["exit_code"]), 0)


def _validate(path: Path, assignments: Sequence[str]) -> dict[str, Any]:
    """Describe a valid job."""
    job = job_spec.load(path, assignments)
    return {"name": job.name, "task": job.task, "notes": [*job.notes, *data_cells.check(job)]}


def _show(result: Mapping[str, Any]) -> None:
    say(f"{result['file']}: valid ({result['name']}, {result['task']})")
    for note in result["notes"]:
        say(f"  {note}")
