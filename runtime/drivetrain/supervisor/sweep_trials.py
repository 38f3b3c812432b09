"""Runs the trials of a sweep with Optuna's values, records their results, and writes the table and the best job."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import time
import warnings
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import JsonValue

from drivetrain.errors import DrivetrainError, NumericsError, OutOfMemory, Stopped
from drivetrain.job import Job
from drivetrain.job.custom import list_user_functions
from drivetrain.job.formatting import format_value
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.sweep import Parameter, format_assignments
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.load_job import load
from drivetrain.job_spec.yaml_file import dump, put_value
from drivetrain.report.record import describe_exit
from drivetrain.storage.remote_address import is_remote
from drivetrain.supervisor.child_runs import ChildRuns
from drivetrain.supervisor.sweep_folder import SweepFolder, find_metric, make_study
from drivetrain.system.console import say
from drivetrain.system.files import write_text
from drivetrain.system.run_files import METRICS_FILE, JsonLinesTail, RunFiles
from drivetrain.system.run_records import parse_number, read_integer, read_mapping, read_number

BEST = "best.yaml"
TRIAL_FAILURES = (1, NumericsError.exit_code, OutOfMemory.exit_code)
"""Exit codes that the values of a trial can cause; after another code the sweep ends, too, and can be continued."""
IN_TRIALS = ("sweep=null", "checkpoint.copy_to=null")
"""Assignments for all trials; trials are not copied to a store, because their names are the same in every sweep."""
POLL_SECONDS = 0.2
"""Seconds between two checks of the running trial's metrics."""


class SweepTrials:
    """The trials that one command trains.

    A finished trial is one line of the journal. The values of the next trial are a function of the seed, its number and the
    finished trials, so a killed trial gets the same values again, and its run resumes.
    """

    def __init__(self, folder: SweepFolder, children: ChildRuns) -> None:
        assert folder.job.sweep is not None
        self.folder, self.children = folder, children
        self.study, self.job, self.spec = folder.study, folder.job, folder.job.sweep
        self.metric, self.distributions = find_metric(self.job), make_distributions(self.job)
        self.began_at = time.monotonic()

    def train(self) -> int:
        """Train until all trials are done or the sweep ends early; returns the exit code."""
        done = len(self.study.trials)
        progress = f"continues: {done} of {self.spec.trials} trials are done" if done else "starts"
        say(f"sweep {self.folder.path} {progress}")
        code = 0
        while not code and len(self.study.trials) < self.spec.trials:
            is_over = bool(self.children.forward.sent) or self._is_out_of_time()
            code = Stopped.exit_code if is_over else self._train_trial()
        has_best = self._report()
        if code:
            done = len(self.study.trials)
            say(f"sweep: {done} of {self.spec.trials} trials are done; run the same command to continue")
        return code or (0 if has_best else 1)

    def _is_out_of_time(self) -> bool:
        limit = self.spec.max_time
        is_over = limit is not None and time.monotonic() - self.began_at > parse_duration(limit)
        if is_over:
            say(f"sweep.max_time of {limit} has passed")
        return is_over

    def _ask(self) -> Trial:
        """Ask Optuna for the next trial, in an in-memory copy of the journal."""
        trials = self.study.trials
        digest = hashlib.sha256(f"{self.spec.seed} {len(trials)}".encode()).digest()
        study = make_study(self.job, int.from_bytes(digest[:4]))
        study.add_trials(trials)
        return study.ask(self.distributions)

    def _assign(self, values: Mapping[str, JsonValue], *changes: str) -> tuple[Job, list[str]]:
        """Load the job of a trial; returns it and its assignments, including measurements of the first run."""
        self.children.runs.update(self.folder.find_runs())
        return self.children.assign([*format_assignments(values), *changes, *IN_TRIALS])

    def _train_trial(self) -> int:
        """Train one trial to its end; returns 0 if it is recorded, else the exit code."""
        trial = self._ask()
        number, values = trial.number, read_values(self.job, trial.params)
        say(f"trial {number} ({number + 1} of {self.spec.trials}): {_describe_values(values)}")
        try:
            job, assignments = self._assign(values, f"name=trial{number}")
        except DrivetrainError as error:
            return self._tell(trial, "FAIL", reason=str(error).splitlines()[0])
        watch = _TrialWatch(self.folder, trial, self.metric, job.train.epochs)
        if watch.is_worse():  # according to the rows of a killed attempt
            return self._tell(trial, "PRUNED")
        code, result = self.children.train(assignments, "--if-unfinished", wait=watch.wait)
        if watch.is_worse():
            return self._tell(trial, "PRUNED")
        if code in TRIAL_FAILURES and not self.children.forward.sent:
            return self._tell(trial, "FAIL", reason=f"exit code {code}: {describe_exit(code)}")
        if code:
            return code
        best = read_mapping(result, "best")
        value = read_number(read_mapping(best, "metrics"), self.metric)
        if value is None:
            return self._tell(trial, "FAIL", reason=f"{self.metric} is not a number")
        selector = best.get("metric")
        if number == 0 and selector != self.metric and not self.spec.metric:
            say(
                f"sweep: trials are ranked by {self.metric}, but their weights are chosen by {selector}, which suits this data "
                f"better (sweep.metric: {selector} ranks by it, too)"
            )
        return self._tell(trial, "COMPLETE", value)

    def _tell(self, trial: Trial, state: str, value: float | None = None, reason: str = "") -> int:
        """Record in the journal how a trial ended: COMPLETE with its value, PRUNED or FAIL; returns 0."""
        record = trial.study.trials[trial.number]
        record.state, record.value, record.datetime_complete = TrialState[state], value, datetime.now()
        if reason:
            record.set_user_attr("reason", reason)
        self.study.add_trial(record)
        is_best = state == "COMPLETE" and self.study.best_trial.number == trial.number
        say(f"{_describe_trial(record)}{', the best so far' if is_best else ''}")
        return 0

    def _report(self) -> bool:
        """Print a table, and write the job of the best trial; returns whether there is a best trial."""
        trials = self.study.trials
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        sign = 1 if self.study.direction.name == "MINIMIZE" else -1
        done.sort(key=lambda trial: sign * (trial.value or 0.0))
        for trial in (*done, *(trial for trial in trials if trial.state != TrialState.COMPLETE)):
            say(f"  {_describe_trial(trial)}  {_describe_values(trial.params)}")
        if not done:
            say(f"sweep: none of {len(trials)} trials is done")
            return False
        best, assignments = self._assign(read_values(self.job, done[0].params))
        command = ["drivetrain", "train", str(self.children.source.spec)]
        for assignment in assignments:
            if assignment not in IN_TRIALS:
                command += ["--set", assignment]
        path = _write_best(self.folder.path / BEST, best, done[0].number)
        job_text = f", its job is {path}" if path else ""
        say(f"sweep: the best is trial {done[0].number}{job_text}; {shlex.join(command)}")
        return True


def make_distributions(job: Job) -> dict[str, BaseDistribution]:
    """Make Optuna's distribution of each key; raises SpecError for a range that Optuna refuses."""
    distributions: dict[str, BaseDistribution] = {}
    for parameter in job.parameters:
        try:
            with warnings.catch_warnings(action="error", category=UserWarning):
                distributions[parameter.key] = _make_distribution(parameter)
        except (ValueError, UserWarning) as error:
            raise job.spec_error(
                ("sweep", "space", parameter.key),
                f"is refused: {' '.join(str(error).split())}",
                "low below high, above 0 if log is true; a step that divides the range, without log",
                "change the range, or list the values",
            ) from None
    return distributions


def _make_distribution(parameter: Parameter) -> BaseDistribution:
    low, high, step = parameter.low, parameter.high, parameter.step
    if parameter.choices:
        return CategoricalDistribution(list(map(_encode, parameter.choices)))
    if parameter.whole:
        return IntDistribution(int(low), int(high), parameter.log, int(step or 1))
    return FloatDistribution(low, high, parameter.log, step)


def _encode(choice: JsonValue) -> bool | int | float | str | None:
    """Return a choice as Optuna stores it: lists and mappings are JSON."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice


def read_values(job: Job, params: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Read the values of a trial by key, from Optuna's values."""
    values: dict[str, JsonValue] = dict(params)
    for parameter in job.parameters:
        for choice in parameter.choices:
            if _encode(choice) == params[parameter.key]:
                values[parameter.key] = choice
    return values


def _describe_values(values: Mapping[str, JsonValue]) -> str:
    return ", ".join(f"{key} {format_value(value)}" for key, value in values.items())


def _describe_trial(trial: FrozenTrial) -> str:
    """Describe how a finished trial ended."""
    epochs = len(trial.intermediate_values)
    endings = {
        TrialState.FAIL: f" failed: {trial.user_attrs.get('reason')}",
        TrialState.PRUNED: f": ended early after epoch {epochs}, worse than the median of the finished trials",
        TrialState.COMPLETE: f": {format_value(trial.value)}",
    }
    return f"trial {trial.number}{endings[trial.state]}"


class _TrialWatch:
    """Reports the metric of each epoch of a running trial to Optuna, and ends a trial that is worse than most."""

    def __init__(self, folder: SweepFolder, trial: Trial, metric: str, epochs: int) -> None:
        self.folder, self.trial, self.metric, self.epochs = folder, trial, metric, epochs
        self.tail: JsonLinesTail | None = None
        self.last_epoch = -1
        """Last epoch that was read."""
        self.is_ended = False

    def is_worse(self) -> bool:
        """Report the epochs since the last call; returns whether the trial must end early or has ended early."""
        run = None if self.tail else self.folder.find_run(self.trial.number)
        if run:
            self.tail = JsonLinesTail(RunFiles(run), METRICS_FILE)
        if self.tail is None or self.is_ended:
            return self.is_ended
        for row in self.tail.read()[0]:
            # A resumed run writes the file again, with the same rows up to its checkpoint.
            epoch, value = read_integer(row, "epoch"), parse_number(row.get(self.metric))
            if epoch is not None and value is not None and epoch > self.last_epoch:
                self.last_epoch = epoch
                self.trial.report(value, epoch)
                if epoch + 1 < self.epochs and self.trial.should_prune():
                    self.is_ended = True
                    break
        return self.is_ended

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the run of the trial, and stop it when it is worse than most."""
        while True:
            try:
                return child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if not self.is_ended and self.is_worse():
                    child.send_signal(signal.SIGTERM)


def _write_best(path: Path, best: Job, number: int) -> str:
    """Write the job of the best trial; returns its path, or an empty text if the job cannot be stored there."""
    # The user's code is imported only from the folder of the original job file.
    if list(list_user_functions(best)):
        return ""
    document = best.document
    for key, text in (*best.data_paths(), *best.model_paths()):
        resolved = best.resolve(text)
        elsewhere = is_on_hub(text) or is_remote(text) or Path(os.path.expanduser(text)).is_absolute()
        if not elsewhere and resolved.exists():
            put_value(document, key, os.path.relpath(os.path.abspath(resolved), os.path.abspath(path.parent)), "")
    del document.data["sweep"]
    write_text(path, f"# Trial {number} of the sweep in this folder, the best one.\n{dump(document.data)}")
    try:
        load(path)
    except DrivetrainError:
        path.unlink()
        return ""
    return str(path)
