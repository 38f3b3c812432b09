"""The result of a run in numbers, from the trainer's own summary or, if that is missing, from the logs."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from drivetrain import errors
from drivetrain.job import JOBS, lower_is_better
from drivetrain.report.formatting import format_json
from drivetrain.report.log_series import Series
from drivetrain.report.record import Record
from drivetrain.system.run_records import Best, RunState, read_integer, read_mapping, read_number, read_numbers


@dataclass(frozen=True)
class Summary:
    """The result. Times in seconds, memory in bytes; None for what is unknown."""

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
    watching: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds of the monitoring threads: monitor and live view."""
    test: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the final test."""
    forecast: Mapping[str, Any] = field(default_factory=dict)
    """What was forecast of seconds, end and memory, the moment it has `ended`, and errors in percent."""
    efficiency: Mapping[str, float] = field(default_factory=dict)
    """FLOPs per training sample, and FLOP/s of a large matrix product on this machine."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON data."""
        return asdict(self)

    def choose_evaluation(self) -> tuple[Mapping[str, float], str]:
        """Metrics, and of what they are: of the model, or of the last epoch if the run has recorded none of a model."""
        metrics = self.best.metrics if self.best else {}
        return (metrics, "model") if metrics else (self.last, "last epoch")

    def describe_exit(self) -> str:
        """The meaning of the exit code."""
        return describe_exit(self.exit_code)


def describe_exit(code: int | None) -> str:
    """The meaning of an exit code."""
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
    rss, steps = record.telemetry.get("rss"), record.metrics.get("train/loss")
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
            rss.xs[-1] if rss else None,
        ),
        steps=int(steps.xs[-1]) if steps and "steps" not in result else read_integer(result, "steps"),
        epochs=ending.epochs,
        samples_per_second=_first_known(
            read_number(result, "samples_per_second"), speeds[len(speeds) // 2] if speeds else None
        ),
        peak_memory=_first_known(read_number(result, "peak_memory"), max(rss.ys) if rss else None),
        memory_limit=_first_known(
            read_number(result, "memory_limit"), detected_limit, limits.ys[-1] if limits else None
        ),
        parameters=read_integer(result, "parameters"),
        trainable=read_integer(result, "trainable"),
        phases=read_numbers(result, "phases"),
        watching=read_numbers(result, "watching"),
        test=read_numbers(read_mapping(result, "test"), "metrics"),
        forecast=read_forecast(result),
        efficiency=read_numbers(result, "efficiency"),
    )


def read_forecast(result: Mapping[str, Any]) -> dict[str, Any]:
    """The forecast in a result: its finite numbers, and the moments of its end as it was forecast and as it was."""
    forecast = read_mapping(result, "forecast")
    moments = {key: format_json(forecast[key]) for key in ("end", "ended") if isinstance(forecast.get(key), str)}
    return {**read_numbers(result, "forecast"), **moments}


def _choose_best(record: Record) -> Best | None:
    """The best value as the run recorded it, or else by its logs."""
    if best := record.ending.best:
        return replace(best, metric=format_json(best.metric))
    metric = _find_watched_metric(record)
    series = record.metrics.get(metric) if metric else None
    if not metric or not series:
        return None
    value = (min if lower_is_better(metric) else max)(series.ys)
    return Best(metric, value, int(series.xs[series.ys.index(value)]), None)


def _find_watched_metric(record: Record) -> str | None:
    """The metric that selects the best weights: the run's, else the spec's, else a validation score, else a loss."""
    if record.watched_metric:
        return record.watched_metric
    requested = read_mapping(record.spec, "checkpoint").get("best") or _find_task_metric(record.spec)
    if requested:
        return str(requested)
    validation = [key for key in record.metrics if key.startswith("validation/")]
    scores = [key for key in validation if not key.endswith("/loss")]
    return next(iter([*scores, *validation, *(["train/loss"] if "train/loss" in record.metrics else [])]), None)


def _find_task_metric(spec: Mapping[str, Any]) -> str | None:
    """The metric that a task chooses by itself: with several heads that of the heaviest one."""
    kind = JOBS.get(str(spec.get("task")))
    try:
        return kind.model_validate(spec).best() if kind else None
    except ValidationError:  # written by another version
        return None


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
