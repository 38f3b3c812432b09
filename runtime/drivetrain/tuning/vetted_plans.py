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


def recheck_stored(builder: VariantBuilder, stored: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Results from other data or settings, if their losses also match under the current settings; else none."""
    intro = f"tune: measured before, on {next(iter(stored.values())).date}, with other data or settings"
    vetoed = [name for name, row in stored.items() if row.vetoed]
    if vetoed:
        builder.say(f"{intro}, which rejected a value of {vetoed[0]}; measuring again")
        return {}
    difference = find_wrong_numbers(
        builder, builder.run.plan.with_values({name: row.value for name, row in stored.items()})
    )
    if difference:
        builder.say(f"{intro}; with these settings the loss differs ({difference}); measuring again")
        return {}
    builder.say(f"{intro}; loss ok")
    return dict(stored)


def turn_wrong_defaults_off(builder: VariantBuilder, state: TunerState, deadline: float) -> bool:
    """Turn off defaults that compute wrong numbers; returns whether the rest computes right ones.

    Args:
        builder: does the measurements.
        state: the state, with the default plan.
        deadline: deadline, on the monotonic clock.
    """
    try:
        difference = find_wrong_numbers(builder, state.plan, deadline)
    except variants.TooSlow as error:
        builder.say(f"tune: the default settings were {error}")
        return False
    if difference is None:
        return True
    suspects = _list_suspects(state.plan)
    # If the numbers are right without a single one, only that one is turned off.
    right_without = (one for one in suspects if find_wrong_numbers(builder, _turn_off(state.plan, [one])) is None)
    culprit = next(right_without, None)
    if culprit is None and (unexplained := find_wrong_numbers(builder, _turn_off(state.plan, suspects))):
        builder.say(f"warning: the settings of the job change the loss: {unexplained}")
        return False
    for suspect in [culprit] if culprit else suspects:
        value = state.plan.value(suspect.name)
        text = f"{format_value(value)} vetoed: {difference}"
        state.trials[(suspect.name, value)] = [(0.0, state.plan)]
        state.measurements[suspect.name] = Measurement(suspect.off, text, evidence.format_date())
        state.plan = state.plan.with_values({suspect.name: suspect.off})
        builder.say(f"tune: {suspect.name} {text}")
    state.incumbent = builder.build(state.plan)
    return True


def check_short_run(builder: VariantBuilder) -> dict[str, Measurement]:
    """Check the numbers of a run that is too short to be measured: two steps against everything off in fp32.

    Values that only the calibration chose are always checked; the defaults, within the share of the run for measuring.

    Returns:
        What is turned off for its numbers; empty if they are right.
    """
    run = builder.run
    rounding = [row for row in run.plan.decisions if row.effect == Effect.ROUNDING]
    calibrated = [row.name for row in rounding if row.source == "calibrated"]
    step_budget = tuner_state.MEASURING_SHARE * run.total_steps
    is_skipped = step_budget < 2 * COMPARED_STEPS or run.plan.value("feature_cache") is not False
    if not rounding or (is_skipped and not calibrated):
        return {}
    builder.compared_steps = COMPARED_STEPS
    state = TunerState(run.plan, builder.build(run.plan))
    max_seconds = MAX_CHECK_SECONDS
    if not calibrated:
        max_seconds = min(max_seconds, step_budget * state.incumbent.time_steps(1))
    is_right = turn_wrong_defaults_off(builder, state, time.monotonic() + max_seconds)
    # A calibrated value was faster on another network only, so its speed is checked on this one.
    for name in calibrated if is_right and not state.measurements else ():
        _check_speed(builder, state, name)
    return state.measurements


def _check_speed(builder: VariantBuilder, state: TunerState, name: str) -> None:
    """Compare a calibrated value with none in steps of the job itself, and turn it off if it is not faster there."""
    value, off = state.plan.value(name), optimizations.off_values()[name]
    baseline = builder.build(state.plan.with_values({name: off}))
    for variant in (baseline, state.incumbent):
        variant.batches = builder.batches(variant.run)
        variant.time_steps(1)
    pair = compare(baseline.time_steps, state.incumbent.time_steps, state.incumbent.time_steps(1), TIMED_SECONDS)
    text = f"{format_value(value)} {pair.format_spread()} against {format_value(off)} in steps of this job"
    builder.say(f"calibrate: {name} {text}, loss ok in {COMPARED_STEPS} steps")
    if pair.median < 1:
        state.measurements[name] = Measurement(off, text, evidence.format_date())


def find_wrong_numbers(builder: VariantBuilder, plan: Plan, deadline: float = math.inf) -> str | None:
    """Where, and by how much, the first steps of a plan are wrong; None if they are right.

    Raises:
        TooSlow: if that is not known by `deadline`.
    """
    on_gpu = builder.run.device.type == "cuda"
    used = [one for one in optimizations.every() if plan.value(one.name) != one.off]
    no_dropout = any(variants.changes_dropout(one, plan, builder.facts, on_gpu) for one in used)
    reference, variant = builder.load_reference(no_dropout, plan, deadline), builder.build(plan)
    variant.deadline = deadline
    return variants.find_difference(variant.read_numbers(no_dropout), reference, variants.choose_tolerance(plan))


def _turn_off(plan: Plan, suspects: list[Optimization]) -> Plan:
    return plan.with_values({one.name: one.off for one in suspects})


def _list_suspects(plan: Plan) -> list[Optimization]:
    """Values that the job did not request and that may change the rounding, latest stage first."""
    return [
        optimization
        for optimization in reversed(optimizations.every())
        if plan.row(optimization.name).source in OPEN
        and plan.row(optimization.name).value != optimization.off
        and plan.row(optimization.name).effect != Effect.EXACT
        and optimization.stage not in (Stage.PROCESS, Stage.LOADER)
    ]
