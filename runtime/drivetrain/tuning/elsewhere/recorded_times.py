"""Finds how long earlier runs of a job took on a target machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.errors import DrivetrainError
from drivetrain.hardware.facts import from_json
from drivetrain.job import Job
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system.run_files import HARDWARE_FILE, RESULT_FILE, RunFiles
from drivetrain.system.run_records import read_mapping, read_number
from drivetrain.tuning.elsewhere.known_machines import KnownMachine


def find_recorded_step(runs: Path, job: Job, target: KnownMachine) -> float | None:
    """Seconds of a step, evaluations included, in the newest finished run of the same job on such a machine.

    Args:
        runs: the folder with run folders.
        job: its name, task, network and batch size are those of the run.
        target: the machine.
    """
    # The newest has the highest number, which has three digits at least.
    for folder in sorted(runs.glob(f"{job.name}-[0-9]*"), key=lambda path: (len(path.name), path.name), reverse=True):
        files = RunFiles(folder)
        result = files.read_object(RESULT_FILE)
        seconds, steps = read_number(result, "seconds"), read_number(result, "steps")
        try:
            hardware = from_json(files.read_object(HARDWARE_FILE))
        except DrivetrainError:
            continue
        if seconds and steps and target.matches(hardware) and _is_same_work(read_stored_spec(folder).data, job):
            return seconds / steps
    return None


def _is_same_work(recorded: Mapping[str, Any], job: Job) -> bool:
    """Whether a step of a recorded spec is one of this job; how many there are does not matter."""
    data = job.document.data
    if any(recorded.get(key) != data.get(key) for key in ("task", "model")):
        return False
    return read_mapping(recorded, "train").get("batch_size") == read_mapping(data, "train").get("batch_size")
