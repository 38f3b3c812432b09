"""Checks that the first losses and gradient norms of a plan match the reference: fp32 without optimizations."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from drivetrain import optimizations
from drivetrain.optimizations import Effect, Optimization, Stage
from drivetrain.optimizations.precision import OFF
from drivetrain.plan import evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import CHOICE, Plan, format_value
from drivetrain.system.console import Detail
from drivetrain.tuning import tuner_state, variants
from drivetrain.tuning.paired_timing import compare
from drivetrain.tuning.tuner_state import TunerState
from drivetrain.tuning.variants import VariantBuilder

COMPARED_STEPS = 2
"""Number of steps compared with the reference in a run that is too short for measurements."""
TIMED_SECONDS = 0.5
"""Seconds for timing a short number format with steps of the job."""
CHECK_SHARE = 0.05
"""Share of the run for comparing and timing a short number format."""
MAX_CHECK_SECONDS = 10.0
"""Seconds after which the first steps are not compared further."""


def recheck_measurements(builder: VariantBuilder, stored: Mapping[str, Measurement]) -> bool:
    """Return whether the values of stored measurements match the reference in this job, too."""
    intro = f"tune: measured before, on {next(iter(stored.values())).date}"
    vetoed = [name for name, row in stored.items() if row.vetoed]
    if vetoed:
        builder.say(f"{intro}, which rejected a value of {vetoed[0]}; measuring again")
        return False
    # The steps of both are at most a twentieth of the run.
    share_steps = int(CHECK_SHARE * builder.run.total_steps) // 2
    builder.compared_steps = max(COMPARED_STEPS, min(builder.compared_steps, share_steps))
    stored_plan = builder.run.plan.with_values({name: row.value for name, row in stored.items()})
    difference = find_reference_difference(builder, stored_plan)
    if difference:
        builder.say(f"{intro}; with these settings the loss differs ({difference}); measuring again")
        return False
    builder.say(f"{intro}; loss ok")
    return True


def veto_wrong_defaults(builder: VariantBuilder, state: TunerState, deadline: float) -> bool:
    """Turn off defaults that make a plan differ from the reference; returns whether it matches afterwards.

    Args:
        builder: builder of the compared variants.
        state: state with the default plan, which is changed.
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

    A short number format chosen by a rule is compared with fp32 and timed; other defaults are compared only if this
    fits into the measuring share of the run.

    Returns:
        The results by name, with the replacement of each value that was turned off.
    """
    run = builder.run
    builder.compared_steps = COMPARED_STEPS
    precision = run.plan.row("precision")
    is_chosen = precision.source == CHOICE and precision.value in variants.SHORT_FORMATS
    measurements = check_short_format(builder) if is_chosen else {}
    plan = run.plan.with_values({name: row.value for name, row in measurements.items()})
    step_budget = tuner_state.MEASURING_SHARE * run.total_steps
    is_rounding = any(row.effect == Effect.ROUNDING and row.name != "precision" for row in plan.decisions)
    if not is_rounding or step_budget < 2 * COMPARED_STEPS or plan.value("feature_cache") is not False:
        return measurements
    state = TunerState(plan, builder.build(plan), measurements)
    max_seconds = min(MAX_CHECK_SECONDS, step_budget * state.incumbent.time_steps(1))
    veto_wrong_defaults(builder, state, time.monotonic() + max_seconds)
    return state.measurements


def check_short_format(builder: VariantBuilder) -> dict[str, Measurement]:
    """Compare numbers and speed of the first steps in the plan's short format with fp32, all else being equal.

    On a CPU the format is turned off if there is no time for it: some kernels are many times slower in this format.
    """
    run = builder.run
    value = run.plan.value("precision")
    text, is_kept = f"too few steps to compare {value} with fp32", run.device.type != "cpu"
    if CHECK_SHARE * run.total_steps >= 2 * COMPARED_STEPS:
        text, is_kept = _compare_short_format(builder, is_kept=is_kept)
    builder.say(Detail(f"tune: precision {text}"))
    return {"precision": Measurement(value if is_kept else OFF, text, evidence.format_date())}


def _compare_short_format(builder: VariantBuilder, *, is_kept: bool) -> tuple[str, bool]:
    """Compare the format; return the result as text and whether the format is kept, `is_kept` without enough time."""
    run = builder.run
    value = run.plan.value("precision")
    plain, short = (builder.build(run.plan.with_values({"precision": v})) for v in (OFF, value))
    reference = plain.read_numbers(False)
    short.deadline = time.monotonic() + MAX_CHECK_SECONDS
    try:
        numbers = short.read_numbers(False)
    except variants.TooSlow as error:
        return f"{value} {error}", is_kept
    if difference := variants.find_difference(numbers, reference, variants.SHORT_FORMAT_TOLERANCE):
        return f"{value} vetoed: {difference}", False
    # The run also uses the kernels made by the first steps. Other costs of these steps are part of the share.
    step_seconds = plain.time_steps(1)
    share_seconds = (CHECK_SHARE * run.total_steps - 2 * COMPARED_STEPS) * step_seconds
    seconds = min(TIMED_SECONDS, share_seconds)
    if seconds < step_seconds + short.time_steps(1):
        return f"{value} not timed: no time left", is_kept
    pair = compare(plain.time_steps, short.time_steps, step_seconds, seconds)
    return (
        f"{value} {pair.format_spread()} against fp32 in steps of this job, loss ok",
        pair.median >= variants.MIN_SPEEDUP,
    )


def find_reference_difference(builder: VariantBuilder, plan: Plan, deadline: float = math.inf) -> str | None:
    """Describe the first step whose loss or gradient norm differs from the reference by more than rounding; else None.

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
    """List optimizations that the job did not request and that may change the rounding, latest stage first."""
    return [
        optimization
        for optimization in reversed(optimizations.every())
        if plan.row(optimization.name).source == CHOICE
        and plan.row(optimization.name).value != optimization.off
        and plan.row(optimization.name).effect != Effect.EXACT
        and optimization.stage not in (Stage.PROCESS, Stage.LOADER)
    ]
