"""Reads the state of a run from the files of its folder; growing files are read from where the last read ended.

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
from drivetrain.errors import CheckpointError
from drivetrain.job_spec.yaml_file import parse
from drivetrain.system.printable import printable
from drivetrain.system.run_files import (
    HARDWARE_FILE,
    JOB_FILE,
    METRICS_FILE,
    PLAN_FILE,
    STATE_FILE,
    JsonLinesTail,
    RunFiles,
)
from drivetrain.tracking import rank_record
from drivetrain.tracking.best_value import BestValue
from drivetrain.tracking.live.sparkline import Sparkline
from drivetrain.tracking.live.time_left import TimeLeft
from drivetrain.tracking.rank_record import RankRecord

PROGRESS_FILE = "progress.json"
"""What the trainer knows about the remaining work: steps of the run and of an epoch, and the cost of an evaluation."""
MAX_EVENTS = 3
MAX_RECENT_READINGS = 30
"""Readings of the processes over which their speed is taken."""

_DAMAGE_ERRORS = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
"""What a value of another kind than ours leads to."""


@dataclass
class RunView:
    """The state of a run for display. Times in seconds, memory in bytes; None for what is not known (yet)."""

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
    score: Sparkline = field(default_factory=Sparkline)
    best: tuple[float, int] | None = None
    """The best value of the metric, and its epoch."""
    heads: dict[str, tuple[str, Sparkline]] = field(default_factory=dict)
    """By head, if there are several: the name of its score, such as accuracy, and its values."""
    speed: Sparkline = field(default_factory=Sparkline)
    """Samples per second."""
    cpus: float | None = None
    """Number of CPUs that this run may use."""
    sample: Mapping[str, Any] = field(default_factory=dict)
    """The last row of telemetry.jsonl."""
    throttled: float = 0.0
    """Share of the last interval in which the CPU quota throttled the run."""
    crowded: float = 0.0
    """Share of this run's CPUs that others used while it was ready to compute."""
    events: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    ranks: tuple[RankRecord, ...] = ()
    """What each process did lately, if there are several."""


class RunReader:
    """Reads a run folder repeatedly.

    Raises:
        CheckpointError: if there is no such run.
    """

    def __init__(self, folder: Path) -> None:
        files = RunFiles(folder)
        if not files.is_file(JOB_FILE):
            problem = "holds no job.yaml" if folder.is_dir() else "does not exist"
            raise CheckpointError(f"{folder} {problem}", "the folder of a run", "see `ls -t runs`")
        self.view = RunView(folder)
        names = (METRICS_FILE, "telemetry.jsonl", "events.jsonl")
        self.metrics, self.telemetry, self.events = (JsonLinesTail(files, name) for name in names)
        self.time_left: TimeLeft | None = None
        self.best: BestValue | None = None
        self.offset = self.latest = self.throttled = self.waited = 0.0
        self.ranks: deque[tuple[RankRecord, ...]] = deque(maxlen=MAX_RECENT_READINGS)
        try:
            self._read_spec()
        except _DAMAGE_ERRORS as error:
            raise self._damaged_error(error) from None

    def read(self) -> RunView:
        """Read what is new, and return the state.

        Raises:
            CheckpointError: if a file of the run holds something else than a run writes.
        """
        try:
            return self._read()
        except _DAMAGE_ERRORS as error:
            raise self._damaged_error(error) from None

    def _damaged_error(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.view.folder}: its records are damaged: {type(error).__name__}: {printable(str(error)[:200])}",
            "the files of a run as `drivetrain train` writes them",
            f"`drivetrain report {self.view.folder}` shows what can be read",
        )

    def _read(self) -> RunView:
        view, folder = self.view, self.view.folder
        state = RunFiles(folder).read_object(STATE_FILE)
        view.status = str(state.get("status", "starting"))
        if not view.plan:
            self._read_plan()
        # Read each time, since `train.within` changes the number of steps.
        if isinstance(ahead := RunFiles(folder).read_json(PROGRESS_FILE), dict):
            view.total = int(ahead["steps"])
            view.metric = str(ahead.get("best") or view.metric)
            if self.time_left is None:
                self.time_left = TimeLeft(view.total, int(ahead["steps_per_epoch"]), float(ahead["evaluation_steps"]))
            self.time_left.total = view.total
        self._read_metrics()
        for row in self.telemetry.read()[0]:
            self._add_sample(row)
        view.events.extend(printable(str(row.get("text", ""))) for row in self.events.read()[0])
        view.seconds_left = self.time_left.estimate(self.latest) if self.time_left else None
        view.ranks = self._compute_recent_ranks()
        return view

    def _compute_recent_ranks(self) -> tuple[RankRecord, ...]:
        """What each process did in the last reads; since its start if it has been started again."""
        records = rank_record.read_records(self.view.folder)
        if records and (not self.ranks or records != self.ranks[-1]):
            self.ranks.append(records)
        if not self.ranks or len(self.ranks[0]) != len(records):
            return records
        return tuple(
            now if now.samples <= before.samples or now.seconds < before.seconds else now.subtract(before)
            for now, before in zip(records, self.ranks[0], strict=True)
        )

    def _read_spec(self) -> None:
        view = self.view
        spec: Mapping[str, Any] = parse(RunFiles(view.folder).read_text(JOB_FILE), JOB_FILE).data
        train = spec.get("train") or {}
        view.job, view.task, view.epochs = str(spec.get("name")), str(spec.get("task")), train.get("epochs")
        view.at_most = bool(train.get("early_stopping") or train.get("max_time"))
        view.metric = str((spec.get("checkpoint") or {}).get("best") or "")

    def _read_plan(self) -> None:
        view = self.view
        rows = RunFiles(view.folder).read_object(PLAN_FILE).get("decisions", ())
        off = optimizations.off_values()
        on = [row for row in rows if row["value"] not in (False, 0, "off", "auto", off.get(row["name"]))]
        on.sort(key=lambda row: row["value"] is True)  # a value says more than a mere on
        view.plan = tuple(_format_decision(row["name"], row["value"]) for row in on)
        cpu = RunFiles(view.folder).read_object(HARDWARE_FILE).get("cpu", {})
        view.cpus = cpu.get("quota") or cpu.get("budget")

    def _read_metrics(self) -> None:
        view = self.view
        rows, is_rewritten = self.metrics.read()
        if is_rewritten:
            view.loss, view.score, view.best, self.best = Sparkline(), Sparkline(), None, None
            view.heads.clear()
        for row in rows:
            view.step = max(view.step, row["step"]) if not is_rewritten else row["step"]
            if "train/loss" in row:
                view.loss.add(row["train/loss"])
                view.epoch = row["epoch"] + 1
            self._add_evaluation(row)

    def _add_evaluation(self, row: Mapping[str, Any]) -> None:
        """Record the watched metric; if the spec names none, the first score, or the loss."""
        view = self.view
        names = [name for name in row if name.startswith("validation/")]
        if not view.metric and names:
            view.metric = next((name for name in names if not name.endswith("/loss")), names[0])
        for name in names:
            self._add_head_score(name, row[name])
        if view.metric in row and view.metric != "train/loss":
            value = row[view.metric]
            view.score.add(value)
            self.best = self.best or BestValue(view.metric)
            if self.best.update(value, row["step"], row["epoch"], row.get("validation/loss")):
                view.best = value, row["epoch"] + 1

    def _add_head_score(self, name: str, value: float) -> None:
        """Record one score per head: the one that is watched in any head, else the first."""
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
        view, seconds, throttled = self.view, float(row.get("seconds", 0.0)), row.get("throttled_seconds") or 0.0
        if seconds + self.offset < self.latest:
            self.offset = self.latest
        before, self.latest = self.latest, seconds + self.offset
        view.throttled = max(0.0, throttled - self.throttled) / max(1e-9, self.latest - before) if view.sample else 0.0
        ready, span = row.get("waited_seconds") or 0.0, max(1e-9, self.latest - before)
        # Threads also wait for each other, so no more counts than what the run left unused.
        idle = max(0.0, 1 - (row.get("cpu_percent") or 0.0) / 100 / (view.cpus or 1.0))
        waited = max(0.0, ready - self.waited - max(0.0, throttled - self.throttled)) / span / (view.cpus or 1.0)
        view.crowded = min(idle, waited) if view.sample else 0.0
        self.throttled, self.waited, view.sample, view.elapsed = throttled, ready, row, self.latest
        if row.get("samples_per_second"):  # there are none during an evaluation
            view.speed.add(row["samples_per_second"])
        if self.time_left and "step" in row:
            self.time_left.add(self.latest, row["step"])


def _format_decision(name: str, value: object) -> str:
    return name if value is True else f"{name} {value}"
