"""Reads the state of a run from its folder; growing files are read from the end of the last read.

reader = RunReader(folder)
reader.read()         as often as needed
reader.view           the state as of the last read
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain import optimizations
from drivetrain.job.formatting import choose_score
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.system import run_files
from drivetrain.system.printable import printable
from drivetrain.system.run_files import JsonLinesTail, RunFiles
from drivetrain.system.run_records import RunState, parse_number, read_integer, read_mapping, read_number, read_objects
from drivetrain.tracking.best_value import BestValue
from drivetrain.tracking.live.sparkline import Sparkline
from drivetrain.tracking.live.time_left import TimeLeft

MAX_EVENTS = 3


@dataclass
class RunView:
    """The state of a run for display. Times in seconds, memory in bytes; None for unknown values."""

    folder: Path
    job: str = ""
    task: str = ""
    plan: tuple[str, ...] = ()
    """Decisions that are not off, as `name value`."""
    status: str = "starting"
    epoch: int = 1
    """The current epoch, from 1."""
    epochs: int | None = None
    step: int = 0
    total: int | None = None
    elapsed: float = 0.0
    seconds_left: float | None = None
    at_most: bool = False
    """Whether the training may end earlier, for example by early stopping."""
    loss: Sparkline = field(default_factory=Sparkline)
    metric: str = ""
    """The metric that chooses the weights."""
    score_name: str = ""
    """The metric that is shown: a score in place of a loss."""
    score: Sparkline = field(default_factory=Sparkline)
    best: tuple[float, int] | None = None
    """The score of the best epoch so far, and this epoch."""
    heads: dict[str, tuple[str, Sparkline]] = field(default_factory=dict)
    """By head, if there are several: the name of its score, such as accuracy, and its values."""
    speed: Sparkline = field(default_factory=Sparkline)
    """Samples per second."""
    cpus: float | None = None
    """Number of CPUs that this run may use."""
    sample: Mapping[str, float] = field(default_factory=dict)
    """The numbers of the last row of telemetry.jsonl."""
    throttled: float = 0.0
    """Share of the last interval in which the CPU quota throttled the run."""
    crowded: float = 0.0
    """Share of this run's CPUs that others used while it was ready to compute."""
    events: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))


class RunReader:
    """Reads a run folder repeatedly.

    Raises:
        CheckpointError: if there is no such run.
    """

    def __init__(self, folder: Path) -> None:
        run_files.check_is_run(folder)
        files = RunFiles(folder)
        self.view = RunView(folder)
        names = (run_files.METRICS_FILE, run_files.TELEMETRY_FILE, run_files.EVENTS_FILE)
        self.metrics, self.telemetry, self.events = (JsonLinesTail(files, name) for name in names)
        self.time_left: TimeLeft | None = None
        self.best: BestValue | None = None
        self.offset = self.latest = self.throttled = self.waited = 0.0
        self._read_spec()

    def read(self) -> RunView:
        """Read new rows, and return the state; a damaged file counts as missing."""
        view, files = self.view, RunFiles(self.view.folder)
        view.status = RunState.read(view.folder).status or "starting"
        if not view.plan:
            self._read_plan()
        # Read each time, since the speed changes the number of steps that `train.within` allows.
        ahead = files.read_object(run_files.PROGRESS_FILE)
        view.metric = str(ahead.get("best") or view.metric)
        view.total = read_integer(ahead, "steps") or view.total
        epoch_steps, evaluation_steps = read_integer(ahead, "steps_per_epoch"), read_number(ahead, "evaluation_steps")
        if view.total and self.time_left is None and epoch_steps and evaluation_steps is not None:
            self.time_left = TimeLeft(view.total, epoch_steps, evaluation_steps)
        if view.total and self.time_left:
            self.time_left.total = view.total
        if self.is_timed and view.total and epoch_steps:
            view.epochs = -(-view.total // epoch_steps)
        self._read_metrics()
        for row in self.telemetry.read()[0]:
            self._add_sample(row)
        view.events.extend(printable(str(row.get("text", ""))) for row in self.events.read()[0])
        view.seconds_left = self.time_left.estimate(self.latest) if self.time_left else None
        return view

    def _read_spec(self) -> None:
        view, spec = self.view, read_stored_spec(self.view.folder).data
        train = read_mapping(spec, "train")
        view.job, view.task = str(spec.get("name") or view.folder.name), str(spec.get("task") or "")
        self.is_timed = bool(train.get("within"))
        view.epochs = None if self.is_timed else read_integer(train, "epochs")
        view.at_most = bool(train.get("early_stopping") or train.get("max_time"))
        view.metric = str(read_mapping(spec, "checkpoint").get("best") or "")

    def _read_plan(self) -> None:
        view, files = self.view, RunFiles(self.view.folder)
        off = optimizations.off_values()
        values = {
            str(row.get("name")): row.get("value")
            for row in read_objects(files.read_object(run_files.PLAN_FILE), "decisions")
        }
        on = [name for name, value in values.items() if value not in (False, None, 0, "off", "auto", off.get(name))]
        # A value says more than a mere on.
        on.sort(key=lambda name: values[name] is True)
        view.plan = tuple(name if values[name] is True else f"{name} {values[name]}" for name in on)
        cpu = read_mapping(files.read_object(run_files.HARDWARE_FILE), "cpu")
        view.cpus = read_number(cpu, "quota") or read_number(cpu, "budget")

    def _read_metrics(self) -> None:
        view = self.view
        rows, is_rewritten = self.metrics.read()
        if is_rewritten:
            view.step, view.loss, view.score, view.best, self.best = 0, Sparkline(), Sparkline(), None, None
            view.heads.clear()
        for row in rows:
            step, epoch = read_integer(row, "step"), read_integer(row, "epoch")
            if step is None or epoch is None:
                continue
            view.step = max(view.step, step)
            loss = parse_number(row.get("train/loss"))
            if loss is not None:
                view.loss.add(loss)
                view.epoch = epoch + 1
            self._add_evaluation(row, step, epoch)

    def _add_evaluation(self, row: Mapping[str, Any], step: int, epoch: int) -> None:
        """Record the watched metric; if the spec names none, the first score, or the loss."""
        view = self.view
        scores = {}
        for name in row:
            value = parse_number(row[name])
            if name.startswith("validation/") and value is not None:
                scores[name] = value
        if not view.metric and scores:
            view.metric = next((name for name in scores if not name.endswith("/loss")), next(iter(scores)))
        for name, value in scores.items():
            self._add_head_score(name, value)
        watched = parse_number(row.get(view.metric))
        if watched is not None and view.metric != "train/loss":
            view.score_name = choose_score(view.metric, scores)
            score = scores.get(view.score_name, watched)
            view.score.add(score)
            self.best = self.best or BestValue(view.metric)
            if self.best.update(watched, step, epoch, scores.get("validation/loss")):
                view.best = score, epoch + 1

    def _add_head_score(self, name: str, value: float) -> None:
        """Record one score per head: the kind of the watched metric, or else its first score."""
        _, _, metric = name.partition("/")
        head, _, kind = metric.rpartition("/")
        watched = self.view.metric.rpartition("/")[2]
        if not head or kind == "loss":
            return
        head = printable(head)
        watched_kind, curve = self.view.heads.get(head, (kind, Sparkline()))
        if kind == watched != watched_kind:
            watched_kind, curve = kind, Sparkline()
        if kind == watched_kind:
            curve.add(value)
        self.view.heads[head] = watched_kind, curve

    def _add_sample(self, row: dict[str, Any]) -> None:
        """Record a sensor reading; after a restart their clock starts again and is continued from its last value."""
        view, throttled = self.view, read_number(row, "throttled_seconds") or 0.0
        seconds = read_number(row, "seconds") or 0.0
        if seconds + self.offset < self.latest:
            self.offset = self.latest
        span = max(1e-9, seconds + self.offset - self.latest)
        self.latest = seconds + self.offset
        view.throttled = max(0.0, throttled - self.throttled) / span if view.sample else 0.0
        ready = read_number(row, "waited_seconds") or 0.0
        # Threads also wait for each other, so at most the CPU time that the run left unused counts.
        idle = max(0.0, 1 - (read_number(row, "cpu_percent") or 0.0) / 100 / (view.cpus or 1.0))
        waited = max(0.0, ready - self.waited - max(0.0, throttled - self.throttled)) / span / (view.cpus or 1.0)
        view.crowded = min(idle, waited) if view.sample else 0.0
        self.throttled, self.waited, view.elapsed = throttled, ready, self.latest
        numbers = {name: read_number(row, name) for name in row}
        view.sample = {name: value for name, value in numbers.items() if value is not None}
        if view.sample.get("samples_per_second"):  # there is none during an evaluation
            view.speed.add(view.sample["samples_per_second"])
        step = read_integer(row, "step")
        if self.time_left and step is not None:
            self.time_left.add(self.latest, step)
