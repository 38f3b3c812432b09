"""`drivetrain sweep`: trains a job with the values that Optuna suggests, one trial after the other, and reports on all of them.

Every trial is an ordinary run in the sweep's folder. The same command goes on where a sweep was stopped or killed.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import NumericsError, OutOfMemory, SpecError, Stopped
from runtime.job import Job
from runtime.job.sweep import assignments as values_set
from runtime.job.values import duration_seconds
from runtime.job_spec.spec_source import SpecSource
from runtime.report import swept
from runtime.report.summary import exit_meaning
from runtime.supervisor import run_folder
from runtime.supervisor.sweep import folder as folders
from runtime.supervisor.sweep import outcome, trial
from runtime.supervisor.sweep.study import check_installed
from runtime.system import signals
from runtime.system.console import say
from runtime.system.run_files import RunFiles
from runtime.system.signals import SignalForwarder
from runtime.tuning import batch_size

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

OF_THE_TRIAL = (1, NumericsError.exit_code, OutOfMemory.exit_code)
"""Exit codes that the values of a trial can cause; after every other one the sweep ends too, and can go on."""
OFF = ("sweep=null", "checkpoint.copy_to=null")
"""What trials do without: their names begin anew in each sweep, so copies in one place would meet."""
SHOW_EVERY = 30.0
"""Seconds between two versions of the page; trials can be shorter than drawing it."""
EXAMPLE = "sweep: {space: {train.optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}}"


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

    def all_assignments(self) -> tuple[str, ...]:
        """The values over the file, with those of the options."""
        return (*self.assignments, *([f"sweep.trials={self.trials}"] if self.trials is not None else []))


def sweep(request: SweepRequest) -> int:
    """Train all trials that are not done; returns 0, or the exit code of what ended the sweep before.

    Raises:
        SpecError: if the job has no sweep.
        DeviceError: if Optuna is not installed.
        CheckpointError: if the sweep that goes on had another spec, other data or other code.
        DrivetrainError: for every problem of a trial that is found before its trainer starts.
    """
    signals.stop_early()
    source = SpecSource(request.spec, request.all_assignments()).read()
    job = source.load()
    if job.sweep is None:
        raise SpecError(f"{request.spec}: sweep: is missing", "the keys to vary, with their ranges", f"add `{EXAMPLE}`")
    check_installed()
    place = folders.open_sweep(request.runs, job, job.sweep.metric or job.best(), plain=request.plain, new=request.new)
    try:
        with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
            return _Sweep(request, source.copy_to(Path(scratch), job), job, place).run()
    finally:
        os.close(place.lock)


class _Sweep:
    """One command's part of a sweep."""

    def __init__(self, request: SweepRequest, source: SpecSource, job: Job, place: folders.SweepFolder) -> None:
        assert job.sweep is not None
        self.request, self.source, self.job, self.spec, self.place = request, source, job, job.sweep, place
        self.study, self.metric = place.study, job.sweep.metric or job.best()
        self.began = self.shown = time.monotonic()

    def run(self) -> int:
        """Train until all trials are done, or something ends the sweep; returns the exit code."""
        done = len(self.study.finished())
        say(
            f"sweep {self.place.path} "
            + (f"goes on: {done} of {self.spec.trials} trials are done" if done else "starts")
        )
        with signals.forwarding() as forward:
            while len(self.study.finished()) < self.spec.trials:
                if forward.sent or self._late():
                    return self._stopped(Stopped.exit_code)
                code = self._trial(self.study.running() or self.study.begin(), forward)
                if code:
                    return self._stopped(code)
                if time.monotonic() - self.shown > SHOW_EVERY:
                    self._report()
        return self._ended()

    def _trial(self, running: FrozenTrial, forward: SignalForwarder) -> int:
        """Train one trial to its end; returns 0 if it is recorded, the exit code otherwise."""
        number, values = running.number, self.study.values(running)
        words = ", ".join(f"{key} {swept.written(value)}" for key, value in values.items())
        say(f"trial {number} ({number + 1} of {self.spec.trials}): {words}")
        assignments = (*self.request.assignments, *values_set(values), f"name=trial{number}", *OFF)
        try:
            job = replace(self.source, assignments=assignments).load()
            if size := batch_size.pinned(job, folders.trial_folders(self.place.path, number)):
                assignments = (*assignments, *size)
                job = replace(self.source, assignments=assignments).load()
        except SpecError as error:
            return self._failed(number, "; ".join(str(error).splitlines()[0:1]))
        options = [word for each in assignments for word in ("--set", each)]
        options += ["--runs", str(self.place.path), *(["--plain"] if self.request.plain else [])]

        def note(epoch: int, value: float) -> bool:
            return self.study.note(number, epoch, value) and epoch + 1 < job.train.epochs

        if self._was_ended(number, job, note):
            return self._pruned(number)
        run = run_folder.finished(self.place.path, job)
        code, ended = 0, False
        if run is None:
            shown = (self._folder(0) or self.place.path) / "plan.json"
            code, ended = trial.train(
                self.source, options, forward, lambda: self._folder(number), self.metric, note, shown
            )
        if ended:
            return self._pruned(number)
        if code in OF_THE_TRIAL and not forward.sent:
            return self._failed(number, f"exit code {code}: {exit_meaning(code)}")
        return code or self._complete(number)

    def _was_ended(self, number: int, job: Job, note: trial.Note) -> bool:
        """Whether the rows of a killed attempt decide that the trial is to be ended."""
        folder = self._folder(number)
        reader = trial.EpochReader(folder / "metrics.jsonl", self.metric) if folder else None
        return any(note(epoch, value) for epoch, value in (reader.new() if reader else ()))

    def _complete(self, number: int) -> int:
        folder = self._folder(number)
        result = (RunFiles(folder).read_json("result.json") if folder else None) or {}
        try:
            value = result["best"]["metrics"][self.metric]
        except (TypeError, LookupError):
            value = None
        if not isinstance(value, int | float) or not math.isfinite(value):
            return self._failed(number, f"{self.metric} is not a number")
        self.study.end(number, "complete", float(value))
        best = self.study.study.best_trial.number
        say(f"trial {number}: {self.metric} {value:.4g}" + (", the best so far" if best == number else ""))
        return 0

    def _pruned(self, number: int) -> int:
        self.study.end(number, "pruned")
        epochs = len(self.study.trials()[number].intermediate_values)
        say(f"trial {number}: ended early after epoch {epochs}, worse than the median of the finished trials")
        return 0

    def _failed(self, number: int, reason: str) -> int:
        self.study.end(number, "fail", reason=reason)
        say(f"trial {number} failed: {reason}")
        return 0

    def _folder(self, number: int) -> Path | None:
        return folders.trial_folder(self.place.path, number)

    def _late(self) -> bool:
        limit = self.spec.max_time
        late = limit is not None and time.monotonic() - self.began > duration_seconds(limit)
        if late:
            say(f"sweep.max_time of {limit} has passed")
        return late

    def _stopped(self, code: int) -> int:
        done = len(self.study.finished())
        say(f"sweep: {done} of {self.spec.trials} trials are done; the same command goes on")
        if done and code == Stopped.exit_code:
            self._report()
        return code

    def _report(self) -> swept.SweepResult:
        found = outcome.write(self.place, self.source, self.request.assignments, self.job, self.metric)
        self.shown = time.monotonic()
        return found

    def _ended(self) -> int:
        found = self._report()
        say(found.words())
        say(f"sweep: {self.place.path}/sweep.html")
        return 0 if found.best else 1
