"""Trains the stored job of a run again: `drivetrain train RUN/job.yaml --plan RUN/plan.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import CheckpointError
from drivetrain.job.custom import list_user_functions
from drivetrain.job_spec.spec_source import SpecSource, load_stored_job
from drivetrain.job_spec.stored_spec import COPY
from drivetrain.models import code_consent
from drivetrain.system import run_files
from drivetrain.system.console import say
from drivetrain.system.run_records import RunState
from drivetrain.tuning import batch_size


def find_source(spec: Path, assignments: Sequence[str], copy: Path | None = None) -> SpecSource:
    """Return the source of a job file; relative paths in the stored job of a run start at the run's original folder.

    Args:
        spec: job file.
        assignments: values that override the spec.
        copy: folder with copies that is read instead; None if there is none.

    Raises:
        CheckpointError: if the run's code was not trained here by this user, or has changed.
    """
    run = spec.parent
    origin = RunState.read(run).source if spec.name == run_files.JOB_FILE and copy is None else ""
    if not origin:
        return SpecSource(spec, tuple(assignments), copy=copy)
    job = load_stored_job(run, None)
    say(f"{spec}: the job of a run; relative paths start at its original folder {job.folder}")
    # The original folder may belong to anybody, so only code that this user has trained runs.
    code = _read_code_digests(run) if any(list_user_functions(job)) else None
    return SpecSource(spec, tuple(assignments), batch_size.read_measured(run, job), job.folder, code)


def _read_code_digests(run: Path) -> dict[str, str]:
    """Read the digests of the code that this user trained here."""
    try:
        return code_consent.read_allowed_digests(run / run_files.MODEL, consent=False)
    except CheckpointError as error:
        raise CheckpointError(
            error.given,
            "a run that you trained here, with unchanged code",
            f"read the files in {run}/{COPY}, copy them to your own folder, and train the copy",
        ) from None
