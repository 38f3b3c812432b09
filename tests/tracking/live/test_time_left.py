"""The time left on recorded traces of real trainings, and on made-up ones that are hard to judge.

tests/traces/*.json were recorded second by second from real runs of the example jobs on one thread. Their clock is the
CPU time of the trainer, from the sensors' `cpu_percent`: the machine had other work, and by the wall clock the same steps
took up to three times as long from one minute to the next, which nobody can foresee. That of `images-wall-clock` is the
wall clock, on a machine that had nothing else to do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from drivetrain.tracking.live.time_left import TimeLeft, format_clock_time
from tests import paths

TRACES = sorted(paths.TRACES.glob("*.json"))
Trace = list[tuple[float, int]]


def errors(trace: Trace, estimator: TimeLeft) -> Iterator[tuple[float, float]]:
    """At every moment: seconds since the start, and how far the guess is from the truth, as a share of the truth."""
    end = trace[-1][0]
    for seconds, step in trace:
        estimator.add(seconds, step)
        guess = estimator.estimate(seconds)
        if guess is not None and end - seconds > 15:
            yield seconds, abs(guess - (end - seconds)) / (end - seconds)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_within_a_tenth_after_a_minute(path: Path) -> None:
    """Of the time that is really left, or three seconds at the end."""
    data = json.loads(path.read_text(encoding="utf-8"))
    trace = [(float(s), int(k)) for s, k in data["rows"]]
    estimator = TimeLeft(data["steps"], data["steps_per_epoch"])
    late_errors = [(seconds, error) for seconds, error in errors(trace, estimator) if seconds >= 60]
    assert len(late_errors) > 20
    end = trace[-1][0]
    assert [(seconds, error) for seconds, error in late_errors if error > max(0.1, 3 / (end - seconds))] == []


def test_there_are_traces_of_different_jobs() -> None:
    assert {"digits", "images", "series", "texts-8-epochs"} <= {path.stem for path in TRACES}


def make_trace(step: Callable[[int], float], evaluation: float, epochs: int = 20, per_epoch: int = 40) -> Trace:
    """A trace of steps that take `step(number)` seconds; the last point is the end of the last evaluation."""
    trace, now = [], 0.0
    for number in range(1, epochs * per_epoch + 1):
        now += step(number)
        trace.append((now, number))
        now += evaluation if number % per_epoch == 0 else 0.0
    return [*trace, (now, epochs * per_epoch)]


def test_a_slow_start_is_forgotten_if_epochs_are_short() -> None:
    """Read once a second, an epoch of half a second has no stretch within it but while it was slow."""
    per_epoch, seconds_left = 25, None
    steps = [0.06] * 300 + [0.02] * 15_000
    times = list(accumulate(steps))
    estimator, next_reading = TimeLeft(len(steps), per_epoch), 1.0
    for number, now in enumerate(times, start=1):
        if now >= next_reading:
            estimator.add(now, number)
            next_reading = now + 1.0
            if now > 150:
                seconds_left = estimator.estimate(now)
                assert seconds_left == pytest.approx(times[-1] - now, rel=0.1, abs=3), f"at {now:.0f} s"
    assert seconds_left is not None


def make_noisy_steps(seed: int) -> Callable[[int], float]:
    noise = random.Random(seed)
    return lambda number: 0.3 * noise.lognormvariate(0, 0.3)


@pytest.mark.parametrize(
    ("name", "trace"),
    [
        ("steady", make_trace(lambda n: 0.3, 2.0)),
        ("noisy", make_trace(make_noisy_steps(0), 2.0)),
        ("a slow first step, as with torch.compile", make_trace(lambda n: 30.0 if n == 1 else 0.3, 2.0)),
        ("a stall of ten seconds", make_trace(lambda n: 10.3 if n == 150 else 0.3, 2.0)),
        ("a checkpoint of a second every 50 steps", make_trace(lambda n: 1.3 if n % 50 == 0 else 0.3, 2.0)),
        ("evaluations as long as epochs", make_trace(lambda n: 0.3, 12.0)),
        ("epochs of a tenth of a second", make_trace(lambda n: 0.02, 0.02, epochs=1000, per_epoch=4)),
        ("one epoch", make_trace(lambda n: 0.3, 2.0, epochs=1, per_epoch=800)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hard_cases_within_a_tenth_after_a_minute(name: str, trace: Trace) -> None:
    per_epoch = {"epochs of a tenth of a second": 4, "one epoch": 800}.get(name, 40)
    estimator = TimeLeft(trace[-1][1], per_epoch, 5.0)
    late_errors = [error for seconds, error in errors(trace, estimator) if seconds >= 60]
    assert late_errors
    assert max(late_errors) < 0.1


def test_an_evaluation_that_runs_is_counted_down() -> None:
    estimator = TimeLeft(80, 40, 0.0)
    trace = make_trace(lambda n: 0.5, 10.0, epochs=2)
    for seconds, step in trace[:80]:
        estimator.add(seconds, step)
    assert estimator.estimate(trace[79][0]) == pytest.approx(10.0, abs=0.1)
    assert estimator.estimate(trace[79][0] + 6) == pytest.approx(4.0, abs=0.1)
    assert estimator.estimate(trace[79][0] + 60) == 0.0


def test_the_first_evaluation_is_estimated() -> None:
    estimator = TimeLeft(40, 40, 6.0)
    for step in range(1, 21):
        estimator.add(step * 0.5, step)
    assert estimator.estimate(10.0) == pytest.approx(20 * 0.5 + 6 * 0.5)


def test_too_little_data_for_an_estimate() -> None:
    estimator = TimeLeft(100, 10)
    assert estimator.estimate(0.0) is None
    estimator.add(0.0, 1)
    estimator.add(1.0, 2)
    estimator.add(1.0, 2)
    assert estimator.estimate(1.0) is None
    assert estimator.step_seconds() is None


def test_a_rollback_restarts_the_estimate_and_keeps_the_rate() -> None:
    estimator = TimeLeft(100, 1000)
    for step in range(1, 51):
        estimator.add(step * 1.0, step)
    estimator.add(60.0, 20)
    estimator.add(61.0, 21)
    assert estimator.estimate(61.0) == pytest.approx(79.0)


def test_a_resumed_run_counts_from_where_it_stands() -> None:
    estimator = TimeLeft(100, 1000)
    for step in range(61, 71):
        estimator.add(step * 1.0, step)
    assert estimator.estimate(70.0) == pytest.approx(30.0)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (42, "0:42"), (725, "12:05"), (3723.9, "1:02:03")])
def test_clock_time(seconds: float, text: str) -> None:
    assert format_clock_time(seconds) == text
