"""Reads the files of a run folder, and sums a run up in numbers.

Files may be missing, or truncated in the middle of a line by a kill. The numbers come from the trainer's own summary or, if it
is missing, from the logs.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from drivetrain import errors
from drivetrain.errors import SpecError
from drivetrain.hardware.facts import Hardware, from_json
from drivetrain.job import lower_is_better
from drivetrain.job.formatting import choose_score
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.plan.plan import Plan, parse_plan
from drivetrain.report.formatting import format_json
from drivetrain.report.log_series import Series, collect_series
from drivetrain.system import run_files
from drivetrain.system.printable import printable, printable_text
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import (
    Best,
    RunResult,
    RunState,
    read_integer,
    read_mapping,
    read_number,
    read_numbers,
)


@dataclass
class Record:
    """Everything that could be read of one run."""

    name: str
    text: str = ""
    """The resolved spec as YAML."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    hardware: Hardware | None = None
    plan: Plan | None = None
    metrics: dict[str, Series] = field(default_factory=dict)
    """By step."""
    epoch_steps: float | None = None
    """Optimizer steps of an epoch; None for a run of less than two."""
    telemetry: dict[str, Series] = field(default_factory=dict)
    """By seconds since the start."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """All of result.json."""
    state: Mapping[str, Any] = field(default_factory=dict)
    extension: Mapping[str, Any] = field(default_factory=dict)
    """The finished run that this one continues, as in extension.json."""
    events: list[Mapping[str, Any]] = field(default_factory=list)
    watched_metric: str = ""
    """The metric that chooses the weights of this run, as it said when it began; empty if it never did."""
    explanation: Mapping[str, Any] = field(default_factory=dict)
    """Explanation of the model, as in explanation.json."""
    gaps: list[str] = field(default_factory=list)
    """The files that are missing or damaged, each with its problem."""

    @property
    def made_from(self) -> Mapping[str, Any]:
        """Return the digests of data, code and weights of a finished run; empty if it has not ended well."""
        return read_mapping(self.state, "made_from")

    @property
    def baselines(self) -> Mapping[str, Any]:
        """Return the simple models beside the network."""
        return read_mapping(self.result, "baselines")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the values of the plan by name; empty for a run without a plan."""
        return self.plan.values() if self.plan else {}

    @property
    def ending(self) -> RunResult:
        """Return the values of the result that other commands read, too."""
        return RunResult(self.result)


def read(run: Path) -> Record:
    """Read a run folder; raises CheckpointError if there is no such folder, or none of a run's files in it."""
    run_files.check_is_run(run)
    record = Record(printable(run.resolve().name))
    _read_spec(record, run)
    _read_hardware(record, run)
    _read_plan(record, run)
    record.metrics = collect_series(_read_rows(record, run, run_files.METRICS_FILE), "step")
    record.epoch_steps = _count_epoch_steps(record.metrics.pop("epoch", None))
    record.telemetry = collect_series(_read_rows(record, run, run_files.TELEMETRY_FILE), "seconds", continues=True)
    record.state = _read_object(record, run, run_files.STATE_FILE)
    # Written at the end of training: in a stopped or running run it does not count as missing.
    is_due = RunState(record.state).status in (None, "done")
    record.result = _read_object(record, run, run_files.RESULT_FILE, is_optional=not is_due)
    record.events = list(_read_rows(record, run, run_files.EVENTS_FILE, is_optional=True))
    record.extension = _read_object(record, run, run_files.EXTENSION_FILE, is_optional=True)
    record.explanation = _read_object(record, run, run_files.EXPLANATION_FILE, is_optional=True)
    progress = _read_object(record, run, run_files.PROGRESS_FILE, is_optional=True)
    record.watched_metric = printable(str(progress.get("best") or ""))
    return record


def _count_epoch_steps(epochs: Series | None) -> float | None:
    """Count the optimizer steps of an epoch, by the number of the epoch at each step."""
    if epochs is None or not epochs or epochs.ys[-1] < 2:
        return None
    # The last epoch may have been cut short, so the one before it counts.
    ends = [step for step, epoch in zip(epochs.xs, epochs.ys, strict=True) if epoch < epochs.ys[-1]]
    return ends[-1] / epochs.ys[-1] if ends else None


def _read_object(record: Record, run: Path, name: str, *, is_optional: bool = False) -> dict[str, Any]:
    data, problem = RunFiles(run).read_checked_object(name)
    if problem and not (is_optional and problem == run_files.MISSING):
        record.gaps.append(f"{name}: {problem}")
    return data


def _read_rows(record: Record, run: Path, name: str, *, is_optional: bool = False) -> Iterator[dict[str, Any]]:
    """Read the rows of a log, one at a time, since the log of a long run may not fit into memory."""

    def report(problem: str, consequence: str) -> None:
        if not (is_optional and problem == run_files.MISSING):
            record.gaps.append(f"{name}: {problem}" + (f"; {consequence}" if consequence else ""))

    return RunFiles(run).read_rows(name, report)


def _read_spec(record: Record, run: Path) -> None:
    spec = read_stored_spec(run)
    record.text, record.spec = printable_text(spec.text), spec.data
    if spec.problem:
        record.gaps.append(f"{run_files.JOB_FILE}: {spec.problem}")


def _read_hardware(record: Record, run: Path) -> None:
    data = _read_object(record, run, run_files.HARDWARE_FILE)
    if data:
        try:
            record.hardware = from_json(data)
        except (SpecError, TypeError, AttributeError, ValueError) as error:
            problem = f"not a description of a machine: {str(error).splitlines()[0]}"
            record.gaps.append(f"{run_files.HARDWARE_FILE}: {problem}")


def _read_plan(record: Record, run: Path) -> None:
    data = _read_object(record, run, run_files.PLAN_FILE)
    if data:
        try:
            record.plan = parse_plan(data)
        except ValueError as error:
            record.gaps.append(f"{run_files.PLAN_FILE}: {error}")


@dataclass(frozen=True)
class Summary:
    """The result. Times in seconds, memory in bytes; None for an unknown value."""

    job: str
    task: str
    status: str
    exit_code: int | None
    stopped_because: str
    best: Best | None
    last: Mapping[str, float]
    seconds: float | None
    steps: int | None
    epochs: float | None
    samples_per_second: float | None
    peak_memory: float | None
    memory_limit: float | None
    parameters: int | None
    trainable: int | None
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase."""
    test: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the final test."""
    forecast: Mapping[str, float] = field(default_factory=dict)
    """Forecast of the seconds, its range, and its error in percent."""

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return asdict(self)

    def find_score(self) -> tuple[str, float] | None:
        """Return name and value of the metric that a person judges the model by; None without an evaluation."""
        if self.best is None:
            return None
        metrics = {**self.best.metrics, self.best.metric: self.best.value}
        name = choose_score(self.best.metric, metrics)
        return name, metrics[name]

    def choose_evaluation(self) -> tuple[Mapping[str, float], str]:
        """Return the metrics of the model, or of the last epoch if the run has recorded no model, and whose they are."""
        if self.best is None or not self.best.metrics:
            return self.last, "last epoch"
        return {self.best.metric: self.best.value, **self.best.metrics, **self.test}, "network"


def describe_exit(code: int | None) -> str:
    """Return the meaning of an exit code."""
    if code is None:
        return "no exit code recorded"
    if code == 0:
        return "done"
    if code == errors.DrivetrainError.exit_code:
        return "failed"
    kinds: list[type[errors.DrivetrainError]] = [*errors.Failure.__subclasses__(), errors.Stopped]
    for kind in kinds:
        if kind.exit_code == code:
            # `python -OO` has no docstrings.
            return (kind.__doc__ or kind.__name__).partition("\n")[0].rstrip(".").lower()
    if code < 0 or code > 128:
        try:
            return f"ended by {signal.Signals(-code if code < 0 else code - 128).name}"
        except ValueError:
            pass
    return "failed"


def summarize(record: Record) -> Summary:
    """Summarize a record."""
    result, ending, state, spec = record.result, record.ending, RunState(record.state), record.spec
    processes, steps = record.telemetry.get("process_memory"), record.metrics.get("train/loss")
    memory = record.telemetry.get("memory_used") or processes
    detected_limit = record.hardware.memory.limit if record.hardware else None
    limits = record.telemetry.get("memory_limit")
    elapsed = (state.ended - state.started).total_seconds() if state.started and state.ended else -1
    speeds = sorted(record.telemetry.get("samples_per_second", Series("")).keep_positive().ys)
    return Summary(
        job=format_json(spec.get("name") or record.name),
        task=format_json(spec.get("task") or "unknown task"),
        status=format_json(state.status or "unknown"),
        exit_code=state.exit_code,
        stopped_because=format_json(result.get("stopped_because") or ""),
        best=_choose_best(record),
        last=read_numbers(result, "last") or {key: s.ys[-1] for key, s in record.metrics.items() if s and "/" in key},
        seconds=_first_known(
            ending.seconds,
            elapsed if elapsed >= 0 else None,  # the clock was set back meanwhile
            processes.xs[-1] if processes else None,
        ),
        steps=int(steps.xs[-1]) if steps and "steps" not in result else read_integer(result, "steps"),
        epochs=ending.epochs,
        samples_per_second=_first_known(
            read_number(result, "samples_per_second"), speeds[len(speeds) // 2] if speeds else None
        ),
        peak_memory=_first_known(read_number(result, "peak_memory"), max(memory.ys) if memory else None),
        memory_limit=_first_known(
            read_number(result, "memory_limit"), detected_limit, limits.ys[-1] if limits else None
        ),
        parameters=read_integer(result, "parameters"),
        trainable=read_integer(result, "trainable"),
        phases=read_numbers(result, "phases"),
        test=read_numbers(read_mapping(result, "test"), "metrics"),
        forecast=read_numbers(result, "forecast"),
    )


def _choose_best(record: Record) -> Best | None:
    """Return the best value that the run recorded; without one, find it in the logs."""
    if best := record.ending.best:
        return replace(best, metric=format_json(best.metric))
    metric = _find_watched_metric(record)
    series = record.metrics.get(metric) if metric else None
    if not metric or not series:
        return None
    value = (min if lower_is_better(metric) else max)(series.ys)
    return Best(metric, value, int(series.xs[series.ys.index(value)]), None)


def _find_watched_metric(record: Record) -> str | None:
    """Find the metric that selects the best weights, as the run recorded it; else in the logs, a validation score before a loss."""
    if record.watched_metric:
        return record.watched_metric
    validation = [key for key in record.metrics if key.startswith("validation/")]
    scores = [key for key in validation if not key.endswith("/loss")]
    return next(iter([*scores, *validation, *(["train/loss"] if "train/loss" in record.metrics else [])]), None)


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
