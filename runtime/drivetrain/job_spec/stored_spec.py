"""Stores the spec of a run in its folder, reads it, and compares it with the current spec.

A run ends with the defaults that it began with, so only keys that the user writes now or wrote then are compared.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job_spec.yaml_file import dump, parse
from drivetrain.system.run_files import JOB_FILE, MISSING, RunFiles, damaged_error, describe_unread

COPY = "job"
"""Name of the folder with copies of a job's files at the time when they were first read."""
WRITTEN_FILE = "written.json"
"""Name of the file in that folder with the keys that the user wrote and their positions; other keys have defaults."""


class StoredSpec(NamedTuple):
    """A stored job file, as far as it can be read."""

    text: str
    data: Mapping[str, Any]
    problem: str = ""
    """Reason why it cannot be read; empty if it is a YAML mapping."""


class SpecComparison(NamedTuple):
    """Comparison of the current job with a stored spec."""

    job: Job
    """Current job; keys that the user neither writes nor wrote have the stored values."""
    lines: list[str]
    """Unified diff; empty if the specs agree, or if a run was killed before it stored its spec."""
    stored_job: Job | None
    """Stored spec as a job; None if this version cannot read it as a job of the same task."""


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
    """Load the content of the job file of a run; raises CheckpointError if it cannot be read."""
    spec = read_stored_spec(run, name)
    if spec.problem:
        raise damaged_error(run / name, spec.problem)
    return spec.data


def spec_text(job: Job) -> str:
    """Return the job's spec, with defaults filled in, as YAML."""
    return dump(job.dump())


def store_spec(folder: Path, job: Job, name: str = JOB_FILE) -> None:
    """Write the spec with every default, and the list of keys that the user wrote.

    Raises:
        StorageError: if a file cannot be written.
    """
    RunFiles(folder).write_text(name, spec_text(job))
    copy = RunFiles(folder, COPY)
    copy.make_folder()
    copy.write_json(WRITTEN_FILE, locate_written(job))


def locate_written(job: Job) -> dict[str, str]:
    """Return the position (file, line and column) of each key that the user wrote, by the key with dots."""
    return {key: job.document.place(tuple(key.split("."))) for key in sorted(_list_keys(job, only_written=True))}


def compare_stored_spec(
    folder: Path,
    job: Job,
    may_change: Collection[str] = (),
    label: str = "the unfinished run",
    name: str = JOB_FILE,
) -> SpecComparison:
    """Compare the current job with the spec that a folder stores.

    Args:
        folder: folder of a run or sweep.
        job: current job.
        may_change: spec keys that are not compared.
        label: name of the stored spec in the diff.
        name: name of the file with the stored spec.

    Raises:
        CheckpointError: if the stored spec cannot be read.
    """
    if read_stored_spec(folder, name).problem == MISSING:
        return SpecComparison(job, [], None)
    stored_spec = load_stored_spec(folder, name)
    record, problem = RunFiles(folder, COPY).read_checked_object(WRITTEN_FILE)
    if problem and problem != MISSING:
        raise damaged_error(folder / COPY / WRITTEN_FILE, problem)
    written = record.keys()
    stored_job: Job | None = None
    removed: list[str] = []
    try:
        # A key that this version no longer has makes no difference unless the user wrote it.
        stored_job = type(job).model_validate(stored_spec, extra="ignore")
        job, stored_spec = _keep_defaults(job, stored_job, written), stored_job.dump()
        removed = sorted(key for key in written - set(_list_keys(job)) if not _is_below(key, may_change))
    except ValidationError:
        may_change = ()  # the message shows every difference
    # Compare the text, because in Python 1 equals True, 16 equals 16.0, and mappings in another order are equal. For the
    # arguments of a user's function and the order of label columns these differences count.
    stored_text, current_text = (dump(_select_fixed(spec, may_change)) for spec in (stored_spec, job.dump()))
    diff = difflib.unified_diff(
        stored_text.splitlines(), current_text.splitlines(), label, "this spec", lineterm="", n=1
    )
    lines = list(diff)
    return SpecComparison(job, lines or [f"-{key}" for key in removed], stored_job)


def _keep_defaults(value: Any, stored: Any, written: Collection[str], prefix: str = "") -> Any:
    """Replace the defaults in a value of the spec by the stored defaults.

    Args:
        value: value of the current spec.
        stored: value of the stored spec at the same place.
        written: keys that the user wrote in the stored spec.
        prefix: keys above the value, each followed by a dot.
    """
    if type(value) is not type(stored):
        return value  # settings of another class, such as another optimizer, have nothing in common
    if isinstance(value, dict):
        return {key: _keep_defaults(v, stored.get(key), written, f"{prefix}{key}.") for key, v in value.items()}
    if isinstance(value, tuple) and len(value) == len(stored):
        pairs = enumerate(zip(value, stored, strict=True))
        return tuple(_keep_defaults(v, stored_v, written, f"{prefix}{i}.") for i, (v, stored_v) in pairs)
    if not isinstance(value, BaseModel):
        return value
    values: dict[str, object] = {}
    for name in type(value).model_fields:
        key = f"{prefix}{name}"
        values[name] = getattr(stored, name)
        if name in value.model_fields_set or key in written:
            values[name] = _keep_defaults(getattr(value, name), values[name], written, f"{key}.")
    result = value.model_copy(update=values)
    # model_copy counts every updated field as written by the user.
    result.model_fields_set.intersection_update(value.model_fields_set)
    return result


def _list_keys(value: object, prefix: str = "", *, only_written: bool = False) -> Iterator[str]:
    """Yield the keys in a value of the spec, with dots between them, after `prefix`, the keys above the value."""
    children: Iterable[tuple[object, object]] = ()
    if isinstance(value, BaseModel):
        names = value.model_fields_set if only_written else type(value).model_fields
        children = ((name, getattr(value, name)) for name in names)
    elif isinstance(value, dict | tuple):
        children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield f"{prefix}{key}"
        yield from _list_keys(child, f"{prefix}{key}.", only_written=only_written)


def _is_below(key: str, keys: Collection[str]) -> bool:
    """Return whether a key is one of `keys` or a key inside one of them."""
    return any(key == parent or key.startswith(f"{parent}.") for parent in keys)


def _select_fixed(spec: Mapping[str, object], may_change: Collection[str], prefix: str = "") -> dict[str, object]:
    """Return a spec without the keys that may change; `prefix` is the keys above it, each followed by a dot."""
    return {
        key: _select_fixed(value, may_change, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in spec.items()
        if f"{prefix}{key}" not in may_change
    }
