"""Checks the numbers of plans before they are used: the defaults, and results measured with other data or settings."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from drivetrain import optimizations
from drivetrain.optimizations import Effect, Optimization, Stage
from drivetrain.plan import evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import OPEN, Plan, format_value
from drivetrain.tuning import tuner_state, variants
from drivetrain.tuning.paired_timing import compare
from drivetrain.tuning.tuner_state import TunerState
from drivetrain.tuning.variants import VariantBuilder

COMPARED_STEPS = 2
"""Steps of a run too short to be measured that are compared with fp32."""
TIMED_SECONDS = 0.5
"""Seconds for comparing a calibrated value in steps of the job itself."""
MAX_CHECK_SECONDS = 10.0
"""Seconds after which this check gives up."""


def again(builder: VariantBuilder, stored: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Results from other data or settings, if their losses also match under the current settings; else none."""
    before = f"tune: measured before, on {next(iter(stored.values())).date}, with other data or settings"
    vetoed = [name for name, row in stored.items() if row.vetoed]
    if vetoed:
        builder.say(f"{before}, which rejected a value of {vetoed[0]}; measuring again")
        return {}
    plan = builder.made.plan
    for name, row in stored.items():
        plan = plan.with_values({name: row.value})
    wrong = wrong_numbers(builder, plan)
    builder.say(
        f"{before}; {f'with these settings the loss differs ({wrong}); measuring again' if wrong else 'loss ok'}"
    )
    return {} if wrong else dict(stored)


def defaults(builder: VariantBuilder, contest: TunerState, until: float) -> bool:
    """Turn off defaults that compute wrong numbers; returns whether the rest computes right ones.

    Args:
        builder: does the measurements.
        contest: the state, with the default plan.
        until: deadline, on the monotonic clock.
    """
    try:
        wrong = wrong_numbers(builder, contest.plan, until)
    except variants.TooSlow as slow:
        builder.say(f"tune: the default settings were {slow}")
        return False
    if wrong is None:
        return True
    suspects = _suspects(contest.plan)
    without = {one.name: contest.plan.with_values({one.name: one.off}) for one in suspects}
    alone = next((one for one in suspects if wrong_numbers(builder, without[one.name]) is None), None)
    if alone is None and (still := wrong_numbers(builder, _all_off(contest.plan, suspects))):
        builder.say(f"warning: the settings of the job change the loss: {still}")
        return False
    for one in [alone] if alone else suspects:
        value = contest.plan.value(one.name)
        text = f"{format_value(value)} vetoed: {wrong}"
        contest.trials[(one.name, value)] = [(0.0, contest.plan)]
        contest.measurements[one.name] = Measurement(one.off, text, evidence.today())
        contest.plan = contest.plan.with_values({one.name: one.off})
        builder.say(f"tune: {one.name} {text}")
    contest.incumbent = builder.arm(contest.plan)
    return True


def short(builder: VariantBuilder) -> dict[str, Measurement]:
    """Check the numbers of a run that is too short to be measured: two steps against everything off in fp32.

    Values that only the calibration chose are always checked; the defaults, within the share of the run for measuring.

    Returns:
        What is turned off for its numbers; empty if they are right.
    """
    run = builder.made
    rounding = [row for row in run.plan.decisions if row.effect == Effect.ROUNDING]
    calibrated = [row.name for row in rounding if row.source == "calibrated"]
    share = tuner_state.MEASURING_SHARE * run.total_steps
    spared = share < 2 * COMPARED_STEPS or run.plan.value("feature_cache") is not False
    if not rounding or (spared and not calibrated):
        return {}
    builder.checked = COMPARED_STEPS
    contest = TunerState(run.plan, builder.arm(run.plan))
    longest = MAX_CHECK_SECONDS if calibrated else min(MAX_CHECK_SECONDS, share * contest.incumbent.steps(1))
    right = defaults(builder, contest, time.monotonic() + longest)
    for name in calibrated if right and not contest.measurements else ():
        _time(builder, contest, name)
    return contest.measurements


def _time(builder: VariantBuilder, contest: TunerState, name: str) -> None:
    """Compare a calibrated value with none in steps of the job itself, and turn it off if it is not faster there."""
    value, off = contest.plan.value(name), optimizations.off_values()[name]
    plain = builder.arm(contest.plan.with_values({name: off}))
    for arm in (plain, contest.incumbent):
        arm.batches = builder.batches(arm.run)
        arm.steps(1)
    pair = compare(plain.steps, contest.incumbent.steps, contest.incumbent.steps(1), TIMED_SECONDS)
    text = f"{format_value(value)} {pair.spread()} against {format_value(off)} in steps of this job"
    builder.say(f"calibrate: {name} {text}, loss ok in {COMPARED_STEPS} steps")
    if pair.median < 1:
        contest.measurements[name] = Measurement(off, text, evidence.today())


def wrong_numbers(builder: VariantBuilder, plan: Plan, until: float = math.inf) -> str | None:
    """Where, and by how much, the first steps of a plan are wrong; None if they are right.

    Raises:
        TooSlow: if that is not known by `until`.
    """
    on_gpu = builder.made.device.type == "cuda"
    used = [one for one in optimizations.every() if plan.value(one.name) != one.off]
    quiet = any(variants.redraws(one, plan, builder.facts, on_gpu) for one in used)
    reference, arm = builder.reference(quiet, plan, until), builder.arm(plan)
    arm.until = until
    return variants.differs(arm.numbers(quiet), reference, variants.tolerance(plan))


def _all_off(plan: Plan, these: list[Optimization]) -> Plan:
    return plan.with_values({one.name: one.off for one in these})


def _suspects(plan: Plan) -> list[Optimization]:
    """Values that the job did not request and that may change the rounding, latest stage first."""
    return [
        one
        for one in reversed(optimizations.every())
        if plan.row(one.name).source in OPEN
        and plan.row(one.name).value != one.off
        and plan.row(one.name).effect != Effect.EXACT
        and one.stage not in (Stage.PROCESS, Stage.LOADER)
    ]
