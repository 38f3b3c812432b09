"""The job file in a run folder: what a run was trained with, with all defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job_spec.load_job import load
from drivetrain.job_spec.yaml_file import parse
from drivetrain.system.run_files import JOB_FILE, RunFiles, damaged_error, describe_unread
from drivetrain.system.run_records import RunState


class StoredSpec(NamedTuple):
    """A stored job file, as far as it can be read, and what is wrong with it; nothing if it is a YAML mapping."""

    text: str
    data: Mapping[str, Any]
    problem: str = ""


def read_stored_spec(run: Path, name: str = JOB_FILE) -> StoredSpec:
    """Read the job file of a run folder."""
    try:
        text = RunFiles(run).read_text(name, errors="replace")
    except OSError as error:
        return StoredSpec("", {}, describe_unread(error))
    try:
        return StoredSpec(text, parse(text, name).data)
    except SpecError as error:
        return StoredSpec(text, {}, f"damaged: {str(error).splitlines()[0]}")


def load_stored_spec(run: Path, name: str = JOB_FILE) -> Mapping[str, Any]:
    """The content of the job file of a run; raises CheckpointError if it cannot be read."""
    spec = read_stored_spec(run, name)
    if spec.problem:
        raise damaged_error(run / name, spec.problem)
    return spec.data


def load_stored_job(run: Path, locate: Callable[[Job], Job] | None) -> Job:
    """The job of a run; relative paths start from the folder of the original job file, and `locate` is as for `load`.

    Raises:
        CheckpointError: if the stored file cannot be read.
        SpecError: if the job cannot be trained as it is stored, such as one of another version.
        DataError: if a path in it does not exist.
    """
    load_stored_spec(run)
    return load(run / JOB_FILE, folder=Path(RunState.read(run).source).parent, locate=locate)
