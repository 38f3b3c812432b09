"""Compares the stored spec of a run with the present one: a run is resumed or extended only if they agree."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drivetrain.job import Job
from drivetrain.job_spec.stored_spec import load_stored_spec, read_stored_spec
from drivetrain.job_spec.yaml_file import dump
from drivetrain.system.run_files import JOB_FILE, MISSING, RunFiles

MAY_CHANGE_ON_RESUME = (
    "limits",
    "baselines",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.notice",
    "checkpoint.copy_to",
    "data.stream.cache",
    "train.max_time",
    "optimize.loader_workers",
    "optimize.sharding",
    "environment",
    "sweep",
    "track",
)
"""Spec keys that may change on a resume: they affect neither which weights are kept nor the training, but for its
rounding."""


def spec_text(job: Job) -> str:
    """The job's spec, with defaults filled in, as YAML."""
    return dump(job.dump())


def diff_stored_spec(
    folder: Path,
    job: Job,
    may_change: Collection[str] = MAY_CHANGE_ON_RESUME,
    label: str = "the unfinished run",
    file_name: str = JOB_FILE,
) -> list[str]:
    """Compare a run's stored spec with the present one; returns the lines of a unified diff, none if they agree.

    A missing file is written, since a run can be killed before it has stored its spec.

    Args:
        job: the present spec.
        may_change: spec keys that are not compared.
        label: what the diff calls the stored spec.
        file_name: the file in the folder that stores the spec.

    Raises:
        CheckpointError: if the stored spec cannot be read.
    """
    if read_stored_spec(folder, file_name).problem == MISSING:
        RunFiles(folder).write_text(file_name, spec_text(job))
        return []
    stored_spec = _select_fixed(_fill_defaults(load_stored_spec(folder, file_name), job), may_change)
    present_spec = _select_fixed(job.dump(), may_change)
    _forgive_older_default(stored_spec, present_spec)
    # As text, since for Python 1 equals True and 16 equals 16.0, and mappings in another order are equal: arguments of a
    # user's function and the order of label columns are neither.
    stored_lines, present_lines = dump(stored_spec).splitlines(), dump(present_spec).splitlines()
    return list(difflib.unified_diff(stored_lines, present_lines, label, "this spec", lineterm="", n=1))


def _forgive_older_default(stored_spec: dict[str, object], present_spec: Mapping[str, object]) -> None:
    """Replace `deterministic: true`, which earlier versions stored for a job file that sets nothing, by `auto`."""
    stored, present = stored_spec.get("train"), present_spec.get("train")
    if isinstance(stored, dict) and isinstance(present, Mapping) and present.get("deterministic") == "auto":
        stored["deterministic"] = "auto" if stored.get("deterministic") is True else stored.get("deterministic")


def load_stored_job(path: Path, job: Job) -> Job | None:
    """Load the spec of a run; None if it is of another task than `job`, or this version cannot read it.

    Raises:
        CheckpointError: if it cannot be read.
    """
    try:
        return type(job).model_validate(load_stored_spec(path))
    except ValidationError:
        return None


def _fill_defaults(stored: Mapping[str, Any], job: Job) -> Mapping[str, object]:
    """A stored spec with the defaults of keys that were added since."""
    try:
        return type(job).model_validate(stored).dump()
    except ValidationError:
        return stored


def _select_fixed(spec: Mapping[str, object], may_change: Collection[str], prefix: str = "") -> dict[str, object]:
    """The part of a spec that must not change; `prefix` is the keys above, with a dot."""
    return {
        key: _select_fixed(value, may_change, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in spec.items()
        if f"{prefix}{key}" not in may_change
    }
