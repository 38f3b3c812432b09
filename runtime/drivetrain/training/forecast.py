"""Forecasts when a training ends, once, from its first steps or those that were timed before it, and compares it with the end."""

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
"""Half of the range, as a share of the time left, however even the first steps were: 14 of 18 recorded trainings ended within."""

Forecast = dict[str, Any]
"""`seconds` of training, of all attempts together, from `low` to `high`; the moment of its `end`; the `steps` that were timed
within the run, 0 if before it; `peak_memory` in bytes if it was measured."""


def read_forecast(folder: Path, steps: int) -> Forecast:
    """Read the forecast of an earlier attempt of so many steps in all; empty if there is none."""
    earlier = RunFiles(folder).read_object(PROGRESS_FILE)
    # An extended run has copied the file of a shorter one.
    return dict(read_mapping(earlier, "forecast")) if read_number(earlier, "steps") == steps else {}


def make_forecast(run: Run, left: TimeLeft, now: float) -> Forecast:
    """Forecast the end of a run from its steps so far; empty while they are too few.

    Args:
        run: the run.
        left: knows when its steps were done.
        now: on the clock of `left`.
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
    """Format the moment in so many seconds, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time.time() + seconds_left, UTC).isoformat(timespec="seconds")


def describe_forecast(forecast: Forecast, source: str) -> str:
    """Return a line for the user, with the range and where it comes from."""
    seconds, low, high = (format_clock_time(forecast[key]) for key in ("seconds", "low", "high"))
    end = datetime.fromisoformat(forecast["end"]).astimezone()
    return f"forecast: the training takes about {seconds} in all ({low} to {high}), until {end:%H:%M:%S %Z}, {source}"


def compare_forecast(forecast: Forecast, result: Mapping[str, object]) -> Forecast:
    """The forecast beside what came: the moment of the end, and errors in percent, positive if too much was forecast."""
    errors = {}
    for name, key in (("error_percent", "seconds"), ("peak_memory_error_percent", "peak_memory")):
        expected, real = read_number(forecast, key), read_number(result, key)
        if expected and real:
            errors[name] = round(100 * (expected / real - 1), 1)
    return {**forecast, **errors, "ended": format_moment()}
