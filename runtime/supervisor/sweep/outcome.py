"""What a sweep has found: its page, and the best trial's job as a command and as a file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import DrivetrainError
from runtime.job import Job, lower_is_better
from runtime.job.custom import parts
from runtime.job.hub_address import is_on_hub
from runtime.job.sweep import assignments as values_set
from runtime.job_spec.load import load
from runtime.job_spec.spec_source import SpecSource
from runtime.job_spec.yaml_file import dump, put_value
from runtime.report import swept
from runtime.report.swept import State, SweepResult, Trial
from runtime.storage.remote_address import is_remote
from runtime.supervisor.sweep.folder import SweepFolder, trial_folder, trial_folders
from runtime.system.files import write_text
from runtime.system.run_files import RunFiles
from runtime.tuning import batch_size

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEST = "best.yaml"
_STATES: dict[str, State] = {"COMPLETE": "done", "PRUNED": "ended early", "FAIL": "failed"}


def write(place: SweepFolder, source: SpecSource, assignments: Sequence[str], job: Job, metric: str) -> SweepResult:
    """Write the page of the trials so far and the best one's job file; returns what is on the page.

    Args:
        place: the sweep.
        source: the job file.
        assignments: values over it.
        job: the job with its sweep.
        metric: that decides.

    Raises:
        StorageError: if the folder cannot be written.
    """
    assert job.sweep is not None
    trials = tuple(_trial(place, trial) for trial in place.study.finished())
    found = SweepResult(job.name, metric, lower_is_better(metric), job.parameters, trials, job.sweep.trials)
    if best := found.best:
        changes = [*assignments, *values_set(best.values)]
        asked = replace(source, assignments=[*changes, "sweep=null"]).load()
        # What a trial has measured is written down, so that the best one is trained again as it was.
        changes += batch_size.pinned(asked, trial_folders(place.path, len(trials)))
        words = [word for each in changes for word in ("--set", each)]
        command = shlex.join(["drivetrain", "train", str(source.spec), *words])
        chosen = replace(source, assignments=[*changes, "sweep=null"]).load()
        found = replace(found, command=command, file=_write_best(place.path / BEST, chosen, best.number))
    swept.write(place.path, found)
    return found


def _trial(place: SweepFolder, trial: FrozenTrial) -> Trial:
    run = trial_folder(place.path, trial.number)
    state = _STATES[trial.state.name]
    result = (RunFiles(run).read_json("result.json") if run else None) or {}
    epochs = len(trial.intermediate_values) or None
    return Trial(
        trial.number,
        state,
        trial.value if state != "failed" else None,
        place.study.values(trial),
        run.name if run else "",
        epochs,
        result.get("seconds") if state == "done" else None,
        str(trial.user_attrs.get("reason", "")),
    )


def _write_best(path: Path, best: Job, number: int) -> str:
    """Write the job of the best trial; returns the path, or nothing if no file can stand there.

    Code of the user is imported from the folder of the job file alone, so such a job has no second place.
    """
    if list(parts(best)):
        return ""
    document = best.document
    for key, text in (*best.data_paths(), *best.model_paths()):
        there = best.resolve(text)
        elsewhere = is_on_hub(text) or is_remote(text) or Path(os.path.expanduser(text)).is_absolute()
        if not elsewhere and there.exists():
            put_value(document, key, os.path.relpath(os.path.abspath(there), os.path.abspath(path.parent)), "")
    del document.data["sweep"]
    write_text(path, f"# Trial {number} of the sweep in this folder, the best one.\n{dump(document.data)}")
    try:
        load(path)
    except DrivetrainError:
        path.unlink()
        return ""
    return str(path)
