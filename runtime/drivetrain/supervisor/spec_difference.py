"""Compares the spec of a run with the present one: what must not change when a run is resumed or extended."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import ValidationError

from drivetrain.job import Job
from drivetrain.job_spec.yaml_file import dump, parse
from drivetrain.system.files import storage_error
from drivetrain.system.run_files import JOB_FILE, RunFiles

# Keys that may change on a resume: they affect neither which weights are kept nor the training, but for its rounding.
FREE = (
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


def spec_text(job: Job) -> str:
    """The resolved spec as YAML."""
    return dump(job.dump())


def difference(
    path: Path,
    job: Job,
    free: Collection[str] = FREE,
    before: str = "the unfinished run",
    name: str = JOB_FILE,
) -> list[str]:
    """Lines of a diff of what must not change and has changed.

    Args:
        path: the run folder.
        job: the present spec.
        free: keys that may change.
        before: what the folder is called.
        name: of the file with its spec.
    """
    try:
        stored = RunFiles(path).read_bytes(name)
    except FileNotFoundError:  # killed before it was written
        RunFiles(path).write_text(name, spec_text(job))
        return []
    except OSError as error:
        raise storage_error(path / name, error) from None
    specs = [_select_fixed(spec, free) for spec in (_fill_defaults(stored, job), job.dump())]
    _forgive_older_default(*specs)
    # As text, since for Python 1 equals True and 16 equals 16.0, and mappings in another order are equal: arguments of a
    # user's function and the order of label columns are neither.
    lines = [dump(spec).splitlines() for spec in specs]
    return list(difflib.unified_diff(lines[0], lines[1], before, "this spec", lineterm="", n=1))


def _forgive_older_default(before: dict[str, object], now: Mapping[str, object]) -> None:
    """Earlier versions stored `deterministic: true` where the job file says nothing."""
    old, new = before.get("train"), now.get("train")
    if isinstance(old, dict) and isinstance(new, Mapping) and new.get("deterministic") == "auto":
        old["deterministic"] = "auto" if old.get("deterministic") is True else old.get("deterministic")


def load_stored_job(path: Path, job: Job) -> Job | None:
    """The spec of a run, if it is of the same task as the present one and this version can read it.

    Raises:
        SpecError: if it is no YAML mapping.
        OSError: if it cannot be read.
    """
    try:
        return type(job).model_validate(parse(RunFiles(path).read_bytes(JOB_FILE), JOB_FILE).data)
    except ValidationError:
        return None


def _fill_defaults(text: bytes, job: Job) -> Mapping[str, object]:
    """A stored spec with the defaults of keys that were added since."""
    stored = parse(text, JOB_FILE).data
    try:
        return type(job).model_validate(stored).dump()
    except ValidationError:
        return stored


def _select_fixed(spec: Mapping[str, object], free: Collection[str], above: str = "") -> dict[str, object]:
    """The part of a spec, or of what lies below the key `above` (with a dot), that must not change."""
    return {
        key: _select_fixed(value, free, f"{above}{key}.") if isinstance(value, Mapping) else value
        for key, value in spec.items()
        if f"{above}{key}" not in free
    }
