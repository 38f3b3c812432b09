"""Finds how long earlier runs of a job took on a machine of the catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.errors import DrivetrainError
from drivetrain.hardware.facts import Hardware, from_json
from drivetrain.job import Job
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system import run_files
from drivetrain.system.run_files import HARDWARE_FILE, RESULT_FILE, RunFiles
from drivetrain.system.run_records import read_integer, read_mapping, read_number
from drivetrain.tuning.elsewhere.machine_catalog import CatalogMachine

LENGTH_KEYS = frozenset({"epochs", "steps", "max_time", "within", "seed", "early_stopping"})
"""Keys of `train:` that do not change a step."""
PATH_KEYS = frozenset({"train", "validation", "test", "fold"})
"""Keys of `data:` that are paths, which differ from machine to machine, or choose rows."""
MAX_STEP_SECONDS = 1e5


def find_recorded_step(runs: Path, job: Job, machine: CatalogMachine) -> float | None:
    """Seconds of a step, evaluations included, in the newest finished run of the same job on such a machine.

    Args:
        runs: the folder with run folders.
        job: its name, and all that a step depends on but the data's path, are those of the run.
        machine: of the catalog.
    """
    names = re.compile(rf"{re.escape(job.name)}-\d{{3,}}")
    folders = [folder for folder in runs.glob("*") if names.fullmatch(folder.name)]
    for folder in sorted(folders, key=run_files.parse_suffix, reverse=True):
        seconds = _read_step_seconds(RunFiles(folder))
        hardware = _read_hardware(RunFiles(folder))
        if seconds and hardware and machine.matches(hardware) and _is_same_work(read_stored_spec(folder).data, job):
            return seconds
    return None


def _read_step_seconds(files: RunFiles) -> float | None:
    result = files.read_object(RESULT_FILE)
    seconds, steps = read_number(result, "seconds"), read_integer(result, "steps")
    if seconds is None or steps is None or steps < 1:
        return None
    return seconds / steps if 0 < seconds / steps < MAX_STEP_SECONDS else None


def _read_hardware(files: RunFiles) -> Hardware | None:
    try:
        return from_json(files.read_object(HARDWARE_FILE))
    except DrivetrainError:
        return None


def _is_same_work(recorded: Mapping[str, Any], job: Job) -> bool:
    """Whether a step of a recorded spec, which has all defaults, is one of this job."""
    return _select_work(recorded) == _select_work(job.dump())


def _select_work(spec: Mapping[str, Any]) -> list[object]:
    """The values of a spec on which a step depends."""
    values = [spec.get(key) for key in ("task", "model", "optimize")]
    values += [read_mapping(spec, "limits").get(key) for key in ("gpus", "processes")]
    for section, ignored_keys in (("data", PATH_KEYS), ("train", LENGTH_KEYS)):
        values.append({k: value for k, value in read_mapping(spec, section).items() if k not in ignored_keys})
    return values
