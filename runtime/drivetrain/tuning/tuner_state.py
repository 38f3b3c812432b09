"""Keeps the state of the tuner: current plan, results so far, next value to measure, and remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from drivetrain.optimizations import Value
from drivetrain.plan import evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import Plan, format_value
from drivetrain.system.console import Detail
from drivetrain.tuning.variants import Variant, Verdict

PROMISING = ("precision", "channels_last", "unpadding", "micro_batch", "compile")
"""Decisions that may gain the most within a few steps; they are measured first."""
RETRY_ABOVE_RATIO = 0.85
"""Speed ratio above which a value that lost is measured again with another plan."""


@dataclass
class TunerState:
    """The plan so far, and all results."""

    plan: Plan
    incumbent: Variant
    """Variant that trains with `plan`; values are compared with it."""
    measurements: dict[str, Measurement] = field(default_factory=dict)
    """Results by decision."""
    trials: dict[tuple[str, Value], list[tuple[float, Plan]]] = field(default_factory=dict)
    """Speed ratios by decision and value, each with the plan of its measurement."""

    def should_measure(self, name: str, value: Value) -> bool:
        """Return whether to measure a value: once, and once more with another plan if it lost narrowly."""
        trials = self.trials.get((name, value), [])
        if not trials:
            return True
        ratio, plan = trials[-1]
        settings = [setting for setting in PROMISING if setting != name]
        has_changed = any(plan.value(setting) != self.plan.value(setting) for setting in settings)
        return len(trials) == 1 and ratio > RETRY_ABOVE_RATIO and has_changed

    def record(self, name: str, value: Value, verdict: Verdict) -> str:
        """Record a result; returns it as text."""
        condition = " together with the accepted settings" if self.trials.get((name, value)) else ""
        text = f"{format_value(value)} {verdict.text}{condition}"
        earlier = self.measurements.get(name)
        self.trials.setdefault((name, value), []).append((verdict.ratio, self.plan))
        if verdict.wins:
            old_value = self.plan.value(name)
            self.plan = self.plan.with_values({name: value})
            # This also measures the old value: with the new plan it is slower by the same ratio.
            self.trials.setdefault((name, old_value), []).append((1 / verdict.ratio, self.plan))
        current_value = self.plan.value(name)
        full_text = f"{earlier.text}; {text}" if earlier else text
        self.measurements[name] = Measurement(current_value, full_text, evidence.format_date())
        return text + ("; accepted" if verdict.wins else "")

    def rank(self, name: str, value: Value) -> tuple[int, float, int]:
        """Return a sort key: values without a measurement first, then by earlier results, then by expected gain."""
        trials = self.trials.get((name, value), [])
        position = PROMISING.index(name) if name in PROMISING else len(PROMISING)
        return len(trials), -trials[-1][0] if trials else 0.0, position


MIN_RUN_SECONDS = 300.0
"""Minimum length of a run that is measured by default."""
MIN_QUICK_RUN_SECONDS, QUICK_SECONDS = 60.0, 2.0
"""Minimum length of a run that measures `quick` optimizations, and the time limit for each of them."""
MEASURING_SHARE = 0.02
"""Share of the predicted run for measuring."""
MIN_STEPS = 16
"""Number of steps that a single comparison takes: 6 to predict the run (1 + 2 + 3), 4 for each of two variants to compare
their losses, and 2 to time one pair.
"""


@dataclass(frozen=True)
class TimeBudget:
    """Time limit of measuring."""

    step_seconds: float
    """Duration of one step."""
    seconds: float
    """Limit of measuring, including the prediction."""
    start: float
    """Start of measuring on the monotonic clock."""

    def elapsed_seconds(self) -> float:
        """Return the elapsed seconds."""
        return time.monotonic() - self.start

    def remaining_seconds(self) -> float:
        """Return the remaining seconds of the limit."""
        return self.seconds - self.elapsed_seconds()


def predict_seconds(variant: Variant, count: int, limit_seconds: float = inf) -> tuple[float, float]:
    """Predict the seconds of one step and, up to a limit, of `count` steps from a few warm steps."""
    variant.time_steps(2)
    step_seconds = variant.time_steps(3) / 3
    return step_seconds, min(limit_seconds, step_seconds * count)


def plan_budget(
    start_baseline: Callable[[], Variant],
    total_steps: int,
    seconds: float | None,
    say: Callable[[str], None],
    limit_seconds: float = inf,
) -> tuple[TimeBudget, Variant] | None:
    """Plan the time limit of measuring, and start the baseline; None, after as few steps as possible, for short runs.

    The limit is `seconds`, or a share of the run if it is None. `limit_seconds` is the time limit of the whole run.
    """
    start_time = time.monotonic()
    too_short = "of training is too short to measure optimizations"
    if seconds is None and MEASURING_SHARE * total_steps < MIN_STEPS:
        # With steps of any length, the share would be used up before anything is compared.
        say(Detail(f"tune: skipped, {total_steps:,} training steps are too few to measure optimizations"))
        return None
    variant = start_baseline()
    if seconds is None:
        # The first step is the slowest, so this is an upper bound; it saves a short run five more steps.
        upper_bound = min(limit_seconds, variant.time_steps(1) * total_steps)
        if upper_bound < MIN_RUN_SECONDS:
            say(Detail(f"tune: skipped, at most {upper_bound:.0f} s {too_short}"))
            return None
    step_seconds, run_seconds = predict_seconds(variant, total_steps, limit_seconds)
    if seconds is None and run_seconds < MIN_RUN_SECONDS:
        say(Detail(f"tune: skipped, about {run_seconds:.0f} s {too_short}"))
        return None
    seconds = MEASURING_SHARE * run_seconds if seconds is None else seconds
    say(f"tune: about {run_seconds:.0f} s of training; measuring optimizations for up to {seconds:.0f} s")
    return TimeBudget(step_seconds, seconds, start_time), variant
