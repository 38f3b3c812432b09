"""Stores the spec of a run in its folder, reads it, and compares it with the present spec.

A run ends with the defaults that it began with: only keys that the user writes now, or wrote then, are compared.
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
"""Name of the folder with copies of the files of a job, as they were when they were first read."""
WRITTEN_FILE = "written.json"
"""Name of the file in that folder that says where the user wrote which keys; all other keys have their defaults."""


class StoredSpec(NamedTuple):
    """A stored job file, as far as it can be read, and what is wrong with it; nothing if it is a YAML mapping."""

    text: str
    data: Mapping[str, Any]
    problem: str = ""


class Comparison(NamedTuple):
    """The present job compared with a stored spec."""

    job: Job
    """The present job; keys that the user neither writes nor wrote have the stored values."""
    lines: list[str]
    """A unified diff; empty if the specs agree, or none is stored, since a run can be killed before it stores its spec."""
    stored_job: Job | None
    """The stored spec as a job; None if this version cannot read it as one of the same task."""


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
    """Write the spec with every default, and which keys the user wrote.

    Raises:
        StorageError: if one of them cannot be written.
    """
    RunFiles(folder).write_text(name, spec_text(job))
    copy = RunFiles(folder, COPY)
    copy.make_folder()
    copy.write_json(WRITTEN_FILE, locate_written(job))


def locate_written(job: Job) -> dict[str, str]:
    """Find where the user wrote which keys: file, line and column by the key with its dots."""
    return {key: job.document.place(tuple(key.split("."))) for key in sorted(_list_keys(job, only_written=True))}


def compare_stored_spec(
    folder: Path,
    job: Job,
    may_change: Collection[str] = (),
    label: str = "the unfinished run",
    name: str = JOB_FILE,
) -> Comparison:
    """Compare the present job with the spec that a folder stores.

    Args:
        may_change: spec keys that are not compared.
        label: what the diff calls the stored spec.
        name: the file in the folder that stores the spec.

    Raises:
        CheckpointError: if the stored spec cannot be read.
    """
    if read_stored_spec(folder, name).problem == MISSING:
        return Comparison(job, [], None)
    stored_spec = load_stored_spec(folder, name)
    record, problem = RunFiles(folder, COPY).read_checked_object(WRITTEN_FILE)
    if problem and problem != MISSING:
        raise damaged_error(folder / COPY / WRITTEN_FILE, problem)
    written = record.keys()
    stored_job: Job | None = None
    removed: list[str] = []
    try:
        # A key that this version no longer has changes nothing, unless the user wrote it.
        stored_job = type(job).model_validate(stored_spec, extra="ignore")
        job, stored_spec = _keep_defaults(job, stored_job, written), stored_job.dump()
        removed = sorted(key for key in written - set(_list_keys(job)) if not _is_below(key, may_change))
    except ValidationError:
        may_change = ()  # the message shows every difference
    # As text, since for Python 1 equals True and 16 equals 16.0, and mappings in another order are equal: arguments of a
    # user's function and the order of label columns are neither.
    before, now = (dump(_select_fixed(spec, may_change)).splitlines() for spec in (stored_spec, job.dump()))
    lines = list(difflib.unified_diff(before, now, label, "this spec", lineterm="", n=1))
    return Comparison(job, lines or [f"-{key}" for key in removed], stored_job)


def _keep_defaults(value: Any, stored: Any, written: Collection[str], prefix: str = "") -> Any:
    """Replace the defaults in a value of the spec by the stored ones; `prefix` is the keys above, with a dot."""
    if type(value) is not type(stored):
        return value  # settings of another class, such as another optimizer, have nothing in common
    if isinstance(value, dict):
        return {key: _keep_defaults(v, stored.get(key), written, f"{prefix}{key}.") for key, v in value.items()}
    if isinstance(value, tuple) and len(value) == len(stored):
        pairs = enumerate(zip(value, stored, strict=True))
        return tuple(_keep_defaults(v, stored_v, written, f"{prefix}{i}.") for i, (v, stored_v) in pairs)
    if not isinstance(value, BaseModel):
        return value
    stored_values: dict[str, object] = {}
    for name in type(value).model_fields:
        key = f"{prefix}{name}"
        is_user_value = name in value.model_fields_set or key in written
        v, stored_v = getattr(value, name), getattr(stored, name)
        stored_values[name] = _keep_defaults(v, stored_v, written, f"{key}.") if is_user_value else stored_v
    result = value.model_copy(update=stored_values)
    result.model_fields_set.intersection_update(value.model_fields_set)
    return result


def _list_keys(value: object, prefix: str = "", *, only_written: bool = False) -> Iterator[str]:
    """Yield the keys in a value of the spec, with dots between them; `prefix` is the keys above."""
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, BaseModel):
        names = value.model_fields_set if only_written else type(value).model_fields
        inner = ((name, getattr(value, name)) for name in names)
    elif isinstance(value, dict | tuple):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, v in inner:
        yield f"{prefix}{key}"
        yield from _list_keys(v, f"{prefix}{key}.", only_written=only_written)


def _is_below(key: str, keys: Collection[str]) -> bool:
    return any(key == above or key.startswith(f"{above}.") for above in keys)


def _select_fixed(spec: Mapping[str, object], may_change: Collection[str], prefix: str = "") -> dict[str, object]:
    """Select the part of a spec that must not change; `prefix` is the keys above, with a dot."""
    return {
        key: _select_fixed(value, may_change, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in spec.items()
        if f"{prefix}{key}" not in may_change
    }
