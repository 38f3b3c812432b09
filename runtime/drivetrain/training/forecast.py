"""Forecasts once when a training ends, from its first steps or earlier measurements, and compares it with the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.system.run_files import PROGRESS_FILE, RunFiles
from drivetrain.system.run_records import read_mapping, read_number
from drivetrain.tracking.live.time_left import TimeLeft, format_clock_time

if TYPE_CHECKING:
    from drivetrain.training.run import Run

MIN_SPREAD = 0.2
"""Minimum half-width of the range, as a share of the time left: 14 of 18 recorded trainings ended within this range."""

Forecast = dict[str, Any]
"""Forecast: `seconds` of training in all attempts, from `low` to `high`; the moment of the `end`; the `steps` that were
timed within the run, 0 if before it; `peak_memory` in bytes if it was measured."""


def read_forecast(folder: Path, steps: int) -> Forecast:
    """Read the forecast of an earlier attempt with the same total `steps`; empty if there is none."""
    earlier = RunFiles(folder).read_object(PROGRESS_FILE)
    # An extended run has copied the file of a shorter one.
    return dict(read_mapping(earlier, "forecast")) if read_number(earlier, "steps") == steps else {}


def make_forecast(run: Run, left: TimeLeft, now: float) -> Forecast:
    """Forecast the end of a run from its steps so far; empty while they are too few.

    Args:
        run: run to forecast.
        left: times of its finished steps.
        now: current time on the clock of `left`.
    """
    estimate = left.estimate(now)
    if estimate is None or left.latest is None:
        return {}
    spent, seconds_left = run.counters.seconds + run.clock.seconds, min(estimate, run.time_left())
    fastest, slowest = left.measure_spread()
    return {
        "seconds": spent + seconds_left,
        "low": spent + min(fastest, 1 - MIN_SPREAD) * seconds_left,
        "high": spent + max(slowest, 1 + MIN_SPREAD) * seconds_left,
        "end": format_moment(seconds_left),
        "steps": left.latest[1],
    }


def format_moment(seconds_left: float = 0.0) -> str:
    """Format the moment `seconds_left` from now as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time.time() + seconds_left, UTC).isoformat(timespec="seconds")


def describe_forecast(forecast: Forecast, source: str) -> str:
    """Return a line for the user with the range and its source."""
    seconds, low, high = (format_clock_time(forecast[key]) for key in ("seconds", "low", "high"))
    end = datetime.fromisoformat(forecast["end"]).astimezone()
    return f"forecast: the training takes about {seconds} in all ({low} to {high}), until {end:%H:%M:%S %Z}, {source}"


def compare_forecast(forecast: Forecast, result: Mapping[str, object]) -> Forecast:
    """Compare the forecast with the result: add the real end and the errors in percent, positive if it was too high."""
    errors = {}
    for name, key in (("error_percent", "seconds"), ("peak_memory_error_percent", "peak_memory")):
        expected, real = read_number(forecast, key), read_number(result, key)
        if expected and real:
            errors[name] = round(100 * (expected / real - 1), 1)
    return {**forecast, **errors, "ended": format_moment()}
