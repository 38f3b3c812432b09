"""Checks whether a finished run is equivalent to the run that a command would train.

In addition to the spec, the data, the user's code, the number of processes and the precision must be the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from drivetrain.data import fingerprint
from drivetrain.distributed import world
from drivetrain.errors import CheckpointError
from drivetrain.hardware import gpu_selection
from drivetrain.hardware.detect import detect
from drivetrain.job import Job
from drivetrain.job.formatting import dot_key
from drivetrain.plan import plan as plans
from drivetrain.system.files import hash_file
from drivetrain.system.run_files import INPUTS_FILE, RunFiles, damaged_error
from drivetrain.system.run_records import read_mapping


def count_processes(job: Job, runs: Path) -> int:
    """Count the processes of a command that would train a job on this machine.

    Raises:
        DeviceError: if a GPU that the job names does not exist.
    """
    return world.count_local_ranks(job, gpu_selection.select_gpus(detect(runs), job.limits.gpus))


def describe_difference(run: Path, processes: int, first_run: Path | None) -> str:
    """Describe how a finished run's training differs from the command; empty if it does not differ.

    Args:
        processes: number of processes that the command would train with.
        first_run: run whose result is averaged with the result of this run.
    """
    try:
        plan = plans.read_plan(run)
    except CheckpointError as error:
        return f"has no usable plan: {error.given}"
    if plan.is_plain:
        return "was trained with --plain"
    count = 1 + len(list((run / "ranks").glob("*")))
    if count != processes:
        return f"was trained by {count} processes, and this command has {processes}"
    if first_run:
        precision, first_precision = (each.value("precision") for each in (plan, plans.read_plan(first_run)))
        if precision != first_precision:
            return f"was trained in {precision}, and {first_run.name} in {first_precision}"
    return ""


def find_changed_file(run: Path, job: Job, free: Collection[str] = ()) -> str:
    """Find a file of the data or the user's code that has changed since a run was trained; empty if there is none.

    Args:
        run: finished run.
        job: current job.
        free: spec keys of data that may differ.

    Raises:
        CheckpointError: if the record of the data is damaged.
    """
    recorded = _check_record(run)
    for path, text in job.data_paths():
        target, key = job.resolve(text), dot_key(path)
        if key in recorded and key not in free:
            base = target if recorded[key]["folder"] else target.parent
            for name, _ in fingerprint.list_changed(base, recorded[key]["rows"]):
                return str(base / name)
    for name, digest in read_record(run, "code").items():
        file = job.folder / name
        if not file.is_file() or hash_file(file) != digest:
            return str(file)
    return ""


def check(runs: Mapping[str, Path], free: Collection[str] = ()) -> None:
    """Check that all runs were trained with the same files, including files that were added to a folder in between.

    Args:
        runs: runs by their names.
        free: spec keys of data that may differ.

    Raises:
        CheckpointError: if the files differ, so that comparing or averaging the runs would be meaningless.
    """
    for run in runs.values():
        _check_record(run)
    first_run, *other_runs = runs.values()
    expected = _read_digests(first_run, free)
    for run in other_runs:
        for kind, digests in _read_digests(run, free).items():
            if digests != expected[kind]:
                raise CheckpointError(
                    f"{first_run} and {run} were trained with different {kind}",
                    f"one set of {kind} for all runs",
                    f"move the runs with the earlier {kind} away, such as {first_run}; the same command then trains them again",
                )


def _read_digests(run: Path, free: Collection[str]) -> dict[str, object]:
    """Read the digests of a run's data and code, without data of the spec keys in `free`."""
    digests = read_data_digests(run).items()
    data = {key: rows for key, rows in digests if key.startswith("data.") and key not in free}
    return {"data": data, "code": read_record(run, "code")}


def read_data_digests(run: Path) -> dict[str, Any]:
    """Read the digests of a run's training data: of files by spec key and name, and of arrays."""
    files = read_record(run, "files").items()
    digests = {key: {name: row.rpartition(" ")[2] for name, row in entry["rows"].items()} for key, entry in files}
    return digests | read_record(run, "arrays")


def read_record(run: Path, section: str) -> dict[str, Any]:
    """Read a section of the record of a run's inputs; empty if it is missing."""
    return dict(read_mapping(RunFiles(run).read_object(INPUTS_FILE), section))


def _check_record(run: Path) -> dict[str, Any]:
    """Return the recorded files of the data; raises CheckpointError if the record is missing or damaged."""
    record, problem = RunFiles(run).read_checked_object(INPUTS_FILE)
    problem = problem or ("" if isinstance(record.get("files"), dict) else "it lists no files")
    if problem:
        raise damaged_error(run / INPUTS_FILE, problem)
    return dict(record["files"])
