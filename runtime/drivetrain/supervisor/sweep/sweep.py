"""`drivetrain sweep`: trains a job with the values that Optuna suggests, one trial after the other, and reports on all of them.

Every trial is an ordinary run in the sweep's folder. The same command goes on where a sweep was stopped or killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import NumericsError, OutOfMemory, SpecError, Stopped
from drivetrain.job import Job
from drivetrain.job.sweep import format_assignments
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import COPY_VARIABLE, SpecSource
from drivetrain.job_spec.stored_spec import store_spec
from drivetrain.plan import plan_table
from drivetrain.report import swept
from drivetrain.report.record import describe_exit
from drivetrain.supervisor import baseline_run, run_folder
from drivetrain.supervisor.sweep import folder as folders
from drivetrain.supervisor.sweep.study import check_installed
from drivetrain.system import child_process, signals
from drivetrain.system.console import say
from drivetrain.system.run_files import METRICS_FILE, PLAN_FILE, RESULT_FILE, JsonLinesTail, RunFiles
from drivetrain.system.run_records import parse_number, read_integer, read_mapping, read_number
from drivetrain.system.signals import SignalForwarder
from drivetrain.tuning import run_length

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TRIAL_FAILURES = (1, NumericsError.exit_code, OutOfMemory.exit_code)
"""Exit codes that the values of a trial can cause; after every other one the sweep ends too, and can go on."""
WITHOUT_SWEEP = ("sweep=null", "checkpoint.copy_to=null")
"""What trials do without: their names begin anew in each sweep, so copies in one place would meet."""
REPORT_SECONDS = 30.0
"""Seconds between two versions of the page; trials can be shorter than drawing it."""
EXAMPLE = "sweep: {space: {train.optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}}"
POLL_SECONDS = 0.2
"""Seconds between two looks at the metrics of the running trial."""


@dataclass(frozen=True)
class SweepRequest:
    """The options of `drivetrain sweep`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    trials: int | None = None
    """In place of `sweep.trials`."""
    plain: bool = False
    new: bool = False


def sweep(request: SweepRequest) -> int:
    """Train all trials that are not done; returns 0, or the exit code of what ended the sweep before.

    Raises:
        SpecError: if the job has no sweep.
        DeviceError: if Optuna is not installed.
        CheckpointError: if the sweep that goes on had another spec, other data or other code.
        DrivetrainError: for every problem of a trial that is found before its trainer starts.
    """
    signals.stop_early()
    trials = [f"sweep.trials={request.trials}"] if request.trials is not None else []
    source = SpecSource(request.spec, (*request.assignments, *trials)).read()
    job = source.load()
    if job.sweep is None:
        raise SpecError(f"{request.spec}: sweep: is missing", "the keys to vary, with their ranges", f"add `{EXAMPLE}`")
    check_installed()
    metric = job.sweep.metric or job.best()
    with (
        folders.open_sweep(request.runs, job, metric, plain=request.plain, new=request.new) as sweep_folder,
        tempfile.TemporaryDirectory(prefix="sweep-") as scratch,
    ):
        # Trials that follow get the defaults that the sweep began with from the copy.
        store_spec(Path(scratch), sweep_folder.job)
        copy = source.copy_to(Path(scratch), sweep_folder.job)
        return _Sweep(request, copy, sweep_folder.job, sweep_folder, metric).run()


class _Sweep:
    """One command's part of a sweep."""

    def __init__(
        self, request: SweepRequest, source: SpecSource, job: Job, sweep_folder: folders.SweepFolder, metric: str
    ) -> None:
        assert job.sweep is not None
        self.request, self.source, self.job, self.spec = request, source, job, job.sweep
        self.sweep_folder = sweep_folder
        self.study, self.metric = sweep_folder.study, metric
        self.began_at = self.reported_at = time.monotonic()

    def run(self) -> int:
        """Train until all trials are done, or something ends the sweep; returns the exit code."""
        done = len(self.study.finished())
        progress = f"goes on: {done} of {self.spec.trials} trials are done" if done else "starts"
        say(f"sweep {self.sweep_folder.path} {progress}")
        with signals.forward_signals() as forward:
            while len(self.study.finished()) < self.spec.trials:
                if forward.sent or self._is_out_of_time():
                    return self._record_stopped(Stopped.exit_code)
                code = self._train_trial(self.study.running() or self.study.begin(), forward)
                if code:
                    return self._record_stopped(code)
                if time.monotonic() - self.reported_at > REPORT_SECONDS:
                    self._report()
        return self._finish()

    def _train_trial(self, running: FrozenTrial, forward: SignalForwarder) -> int:
        """Train one trial to its end; returns 0 if it is recorded, the exit code otherwise."""
        number, values = running.number, self.study.values(running)
        values_text = ", ".join(f"{key} {swept.format_value(value)}" for key, value in values.items())
        say(f"trial {number} ({number + 1} of {self.spec.trials}): {values_text}")
        assignments = (*self.request.assignments, *format_assignments(values), f"name=trial{number}", *WITHOUT_SWEEP)
        try:
            job = replace(self.source, assignments=assignments).load()
            if size := run_length.pin_measured(job, folders.trial_folders(self.sweep_folder.path, number)):
                assignments = (*assignments, *size)
                job = replace(self.source, assignments=assignments).load()
        except SpecError as error:
            return self._record_failed(number, "; ".join(str(error).splitlines()[0:1]))
        options = [word for assignment in assignments for word in ("--set", assignment)]
        options += ["--runs", str(self.sweep_folder.path), *(["--plain"] if self.request.plain else [])]

        def note(epoch: int, value: float) -> bool:
            return self.study.note(number, epoch, value) and epoch + 1 < job.train.epochs

        def find_folder() -> Path | None:
            return folders.trial_folder(self.sweep_folder.path, number)

        reader = EpochReader(find_folder, self.metric, note)
        # The rows of a killed attempt may decide that the trial is to be ended.
        if reader.note_new():
            return self._record_pruned(number)
        run = run_folder.find_finished(self.sweep_folder.path, job)
        code, ended = 0, False
        if run is None:
            shown_plan = (folders.trial_folder(self.sweep_folder.path, 0) or self.sweep_folder.path) / PLAN_FILE
            code, ended = train_trial(self.source, options, forward, reader, shown_plan)
        if ended:
            return self._record_pruned(number)
        if code in TRIAL_FAILURES and not forward.sent:
            return self._record_failed(number, f"exit code {code}: {describe_exit(code)}")
        return code or self._record_complete(number)

    def _record_complete(self, number: int) -> int:
        folder = folders.trial_folder(self.sweep_folder.path, number)
        best_weights = read_mapping(RunFiles(folder).read_object(RESULT_FILE), "best") if folder else {}
        value = read_number(read_mapping(best_weights, "metrics"), self.metric)
        if value is None:
            return self._record_failed(number, f"{self.metric} is not a number")
        chosen_by = best_weights.get("metric")
        if number == 0 and chosen_by != self.metric and not (self.job.sweep and self.job.sweep.metric):
            say(
                f"sweep: ranks trials by {self.metric}; the data let {chosen_by} choose the weights of each "
                f"(sweep.metric: {chosen_by} ranks by it, too)"
            )
        self.study.end(number, "complete", value)
        best = self.study.study.best_trial.number
        say(f"trial {number}: {self.metric} {value:.4g}" + (", the best so far" if best == number else ""))
        return 0

    def _record_pruned(self, number: int) -> int:
        self.study.end(number, "pruned")
        epochs = len(self.study.trials()[number].intermediate_values)
        say(f"trial {number}: ended early after epoch {epochs}, worse than the median of the finished trials")
        return 0

    def _record_failed(self, number: int, reason: str) -> int:
        self.study.end(number, "fail", reason=reason)
        say(f"trial {number} failed: {reason}")
        return 0

    def _is_out_of_time(self) -> bool:
        limit = self.spec.max_time
        is_over = limit is not None and time.monotonic() - self.began_at > parse_duration(limit)
        if is_over:
            say(f"sweep.max_time of {limit} has passed")
        return is_over

    def _record_stopped(self, code: int) -> int:
        done = len(self.study.finished())
        say(f"sweep: {done} of {self.spec.trials} trials are done; the same command goes on")
        if done and code == Stopped.exit_code:
            self._report()
        return code

    def _report(self) -> swept.SweepResult:
        result = folders.write_result(self.sweep_folder, self.source, self.request.assignments, self.job, self.metric)
        self.reported_at = time.monotonic()
        return result

    def _finish(self) -> int:
        result = self._report()
        say(result.describe())
        say(f"sweep: {self.sweep_folder.path}/sweep.html")
        return 0 if result.best else 1


class EpochReader:
    """Reads the metric of each epoch once from the metrics of a run that is being trained.

    Args:
        find_folder: returns the run folder, once there is one.
        metric: to read.
        note: takes an epoch, from 0 on, and the metric after it; returns whether the trial is to be ended.
    """

    def __init__(self, find_folder: Callable[[], Path | None], metric: str, note: Callable[[int, float], bool]) -> None:
        self.find_folder, self.metric, self.note = find_folder, metric, note
        self.tail: JsonLinesTail | None = None
        self.last_epoch = -1
        """The last epoch that was read."""

    def note_new(self) -> bool:
        """Note the epochs that were evaluated since the last call; returns whether the trial is to be ended."""
        if self.tail is None and (folder := self.find_folder()):
            self.tail = JsonLinesTail(RunFiles(folder), METRICS_FILE)
        # A resumed run writes the file anew, with the same rows up to its checkpoint.
        for row in self.tail.read()[0] if self.tail else ():
            epoch, value = read_integer(row, "epoch"), parse_number(row.get(self.metric))
            if epoch is not None and value is not None and epoch > self.last_epoch:
                self.last_epoch = epoch
                if self.note(epoch, value):
                    return True
        return False


def train_trial(
    source: SpecSource,
    options: Sequence[str],
    forward: SignalForwarder,
    reader: EpochReader,
    shown_plan: Path,
) -> tuple[int, bool]:
    """Train, or resume; returns the exit code, and whether the trial was ended early.

    Args:
        source: the job file, and the copy from which all trials are trained.
        options: those of `drivetrain train`.
        forward: forwards signals to the training.
        reader: of the epochs of this trial; decides after each of them.
        shown_plan: the plan of the first trial, which is not shown again.
    """
    ended = False

    def wait(child: subprocess.Popen[bytes]) -> int:
        nonlocal ended
        while True:
            try:
                return child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if not ended and reader.note_new():
                    ended = True
                    child.send_signal(signal.SIGTERM)

    command = [sys.executable, "-m", "drivetrain", "train", child_process.format_path_argument(source.spec), *options]
    # All trials would fit the same simple models.
    environment = {plan_table.SHOWN_PLAN: str(shown_plan), COPY_VARIABLE: str(source.copy), baseline_run.SWITCH: "off"}
    code = child_process.run_child(command, environment, forward, wait=wait)
    return code, ended or reader.note_new()
