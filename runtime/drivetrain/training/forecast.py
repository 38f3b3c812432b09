"""Forecasts once when a training will end, from its first steps, and compares the forecast with the real end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from drivetrain.system.run_records import read_number
from drivetrain.tracking.live.time_left import TimeLeft, format_clock_time

if TYPE_CHECKING:
    from drivetrain.training.run import Run

FINAL_SAVES = 2
"""Files of weights that are written after the last evaluation: a checkpoint and the model."""

Forecast = dict[str, float]
"""Forecast: `seconds` of all attempts until the model is saved, from `low` to `high`, and the `steps` that were timed."""


def make_forecast(run: Run, left: TimeLeft, now: float, save_seconds: float) -> Forecast:
    """Forecast the end of a run from its steps so far; empty while they are too few.

    Args:
        run: run to forecast.
        left: times of its finished steps.
        now: current time on the clock of `left`.
        save_seconds: time of its first checkpoint.
    """
    estimate = left.estimate(now)
    if estimate is None or left.latest is None:
        return {}
    test = run.dataset.test
    evaluations_after = len(test.split) / max(1, len(run.dataset.validation)) if test else 0.0
    seconds_after = FINAL_SAVES * save_seconds + evaluations_after * left.evaluation_seconds()
    seconds_left = min(estimate, run.time_left()) + seconds_after
    elapsed, factor = run.counters.seconds + run.clock.seconds, left.estimate_error()
    # `train.within` and `train.max_time` end the training, however slow it is.
    limit = run.time_left()
    if run.time_target:
        limit = min(limit, run.time_target.seconds - run.time_target.read_clock())
    return {
        "seconds": elapsed + seconds_left,
        "low": elapsed + _measure_shortest_share(run, left.latest[1]) * seconds_left / factor,
        "high": elapsed + max(seconds_left, min(factor * seconds_left, limit)),
        "steps": sum(interval.steps for interval in left.intervals),
    }


def _measure_shortest_share(run: Run, step: int) -> float:
    """Return the share of the steps left that early stopping always trains."""
    stopping = run.job.train.early_stopping
    if stopping is None:
        return 1.0
    earliest = min(run.total_steps, (1 + stopping.patience) * run.batches.per_epoch)
    return max(0.0, earliest - step) / max(1, run.total_steps - step)


def describe_forecast(forecast: Forecast, end: datetime, source: str) -> str:
    """Return a line for the user with the range, the moment of the `end`, what it covers, and its source."""
    seconds, low, high = (format_clock_time(forecast[key]) for key in ("seconds", "low", "high"))
    return (
        f"forecast: about {seconds} from the start to the saved model, {low} to {high} in nine of ten runs, until "
        f"{end.astimezone():%H:%M:%S %Z}; simple models and report come after it; {source}"
    )


def compare_forecast(forecast: Forecast, result: Mapping[str, object]) -> Forecast:
    """Compare the forecast with the result: add the error in percent, positive if it was too high."""
    real = read_number(result, "seconds")
    return {**forecast, "error_percent": round(100 * (forecast["seconds"] / real - 1), 1)} if real else forecast
