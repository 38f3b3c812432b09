"""Checks that the first losses and gradient norms of a plan match the reference: fp32 without optimizations."""

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
"""Number of steps that are compared with the reference in a run too short for measurements."""
TIMED_SECONDS = 0.5
"""Seconds for timing a calibrated value in steps of the job itself."""
MAX_CHECK_SECONDS = 10.0
"""Seconds after which the check of a short run gives up."""


def recheck_measurements(builder: VariantBuilder, stored: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Return measurements of other data or settings if their values match the reference in this job too; else none."""
    intro = f"tune: measured before, on {next(iter(stored.values())).date}, with other data or settings"
    vetoed = [name for name, row in stored.items() if row.vetoed]
    if vetoed:
        builder.say(f"{intro}, which rejected a value of {vetoed[0]}; measuring again")
        return {}
    stored_plan = builder.run.plan.with_values({name: row.value for name, row in stored.items()})
    difference = find_reference_difference(builder, stored_plan)
    if difference:
        builder.say(f"{intro}; with these settings the loss differs ({difference}); measuring again")
        return {}
    builder.say(f"{intro}; loss ok")
    return dict(stored)


def veto_wrong_defaults(builder: VariantBuilder, state: TunerState, deadline: float) -> bool:
    """Turn off the defaults that make a plan differ from the reference; returns whether it matches afterwards.

    Args:
        builder: builds and runs the plans that are compared.
        state: has the default plan, and gets the changed one.
        deadline: end of the first comparison, on the monotonic clock.
    """
    try:
        difference = find_reference_difference(builder, state.plan, deadline)
    except variants.TooSlow as error:
        builder.say(f"tune: the default settings were {error}")
        return False
    if difference is None:
        return True
    suspects = _list_suspects(state.plan)
    # If one suspect alone explains the difference, only that one is turned off.
    plans = ((suspect, _turn_off(state.plan, [suspect])) for suspect in suspects)
    culprit = next((suspect for suspect, plan in plans if not find_reference_difference(builder, plan)), None)
    if culprit is None and (unexplained := find_reference_difference(builder, _turn_off(state.plan, suspects))):
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
    """Compare the first steps of a run that is too short for measurements with the reference.

    Calibrated values are always checked; defaults only if that takes no more than the measuring share of the run.

    Returns:
        The values that were turned off, by name; empty if the plan matches.
    """
    run = builder.run
    rounding = [row for row in run.plan.decisions if row.effect == Effect.ROUNDING]
    calibrated = [row.name for row in rounding if row.source == "calibrated"]
    step_budget = tuner_state.MEASURING_SHARE * run.total_steps
    skips_defaults = step_budget < 2 * COMPARED_STEPS or run.plan.value("feature_cache") is not False
    if not rounding or (skips_defaults and not calibrated):
        return {}
    builder.compared_steps = COMPARED_STEPS
    state = TunerState(run.plan, builder.build(run.plan))
    max_seconds = MAX_CHECK_SECONDS
    if not calibrated:
        max_seconds = min(max_seconds, step_budget * state.incumbent.time_steps(1))
    is_matching = veto_wrong_defaults(builder, state, time.monotonic() + max_seconds)
    # Calibration timed a value on another network, so its speed is checked on this one.
    for name in calibrated if is_matching and not state.measurements else ():
        _check_speed(builder, state, name)
    return state.measurements


def _check_speed(builder: VariantBuilder, state: TunerState, name: str) -> None:
    """Time steps of the job with a calibrated value and without it; turn it off if it is not faster."""
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


def find_reference_difference(builder: VariantBuilder, plan: Plan, deadline: float = math.inf) -> str | None:
    """Describe the first step whose loss or gradient norm differs from the reference by more than rounding, or None.

    Raises:
        TooSlow: if the steps are not done by `deadline`.
    """
    on_gpu = builder.run.device.type == "cuda"
    active = [setting for setting in optimizations.every() if plan.value(setting.name) != setting.off]
    no_dropout = any(variants.changes_dropout(setting, plan, builder.facts, on_gpu) for setting in active)
    reference, variant = builder.load_reference(no_dropout, plan, deadline), builder.build(plan)
    variant.deadline = deadline
    return variants.find_difference(variant.read_numbers(no_dropout), reference, variants.choose_tolerance(plan))


def _turn_off(plan: Plan, suspects: list[Optimization]) -> Plan:
    return plan.with_values({suspect.name: suspect.off for suspect in suspects})


def _list_suspects(plan: Plan) -> list[Optimization]:
    """The optimizations that the job did not request and that may change the rounding, latest stage first."""
    return [
        optimization
        for optimization in reversed(optimizations.every())
        if plan.row(optimization.name).source in OPEN
        and plan.row(optimization.name).value != optimization.off
        and plan.row(optimization.name).effect != Effect.EXACT
        and optimization.stage not in (Stage.PROCESS, Stage.LOADER)
    ]
