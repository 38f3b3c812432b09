"""Checks the numbers of a plan: loss and gradient norm of its first steps against the reference, step by step.

The reference is fp32 with all optimizations off. A setting that changes these numbers by more than rounding is turned off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

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
"""Largest share of the run's steps for checking its numbers."""
MAX_CHECK_SECONDS = 10.0
"""Time limit in seconds for comparing the first steps."""


def recheck_measurements(builder: VariantBuilder, stored: Mapping[str, Measurement]) -> bool:
    """Check in this job that the settings of stored measurements match the reference; returns whether to use them."""
    intro = f"tune: measured before, on {next(iter(stored.values())).date}"
    vetoed = [name for name, row in stored.items() if row.vetoed]
    if vetoed:
        builder.say(f"{intro}, which rejected a value of {vetoed[0]}; measuring again")
        return False
    # Two variants train the compared steps: the stored plan and the reference.
    max_steps = int(CHECK_SHARE * builder.run.total_steps) // 2
    builder.compared_steps = max(COMPARED_STEPS, min(builder.compared_steps, max_steps))
    stored_plan = builder.run.plan.with_values({name: row.value for name, row in stored.items()})
    difference = find_reference_difference(builder, stored_plan)
    if difference:
        builder.say(f"{intro}; with these settings the loss differs ({difference}); measuring again")
        return False
    builder.say(f"{intro}; loss ok")
    return True


def veto_wrong_defaults(builder: VariantBuilder, state: TunerState, deadline: float) -> bool:
    """Turn off the defaults of `state` that make its plan differ from the reference; returns whether it matches then.

    The first comparison ends at `deadline`, on the monotonic clock.
    """
    try:
        difference = find_reference_difference(builder, state.plan, deadline)
    except variants.TooSlow as error:
        builder.say(f"tune: the default settings were {error}")
        return False
    if difference is None:
        return True
    suspects = _list_suspects(state.plan)
    culprit = _find_single_culprit(builder, state.plan, suspects)
    if culprit is None:
        unexplained = find_reference_difference(builder, _turn_off(state.plan, suspects))
        if unexplained:
            builder.say(f"warning: the settings of the job change the loss: {unexplained}")
            return False
    for setting in suspects if culprit is None else [culprit]:
        value = state.plan.value(setting.name)
        text = f"{format_value(value)} vetoed: {difference}"
        # A trial without a gain, so that the value is not measured again.
        state.trials[(setting.name, value)] = [(0.0, state.plan)]
        state.measurements[setting.name] = Measurement(setting.off, text, evidence.format_date())
        state.plan = state.plan.with_values({setting.name: setting.off})
        builder.say(f"tune: {setting.name} {text}")
    state.incumbent = builder.build(state.plan)
    return True


def _find_single_culprit(builder: VariantBuilder, plan: Plan, suspects: Sequence[Optimization]) -> Optimization | None:
    """Find the first suspect without which the plan matches the reference; None if no single one explains it."""
    for suspect in suspects:
        if find_reference_difference(builder, _turn_off(plan, [suspect])) is None:
            return suspect
    return None


def check_short_run(builder: VariantBuilder) -> dict[str, Measurement]:
    """Compare the first steps of a run that is too short for measurements with the reference.

    A short number format chosen by a rule is compared with fp32 and timed. Other defaults are compared only if that fits
    into the measuring share of the run.

    Returns:
        The results by name, with the replacement of each value that was turned off.
    """
    run = builder.run
    builder.compared_steps = COMPARED_STEPS
    precision = run.plan.decision("precision")
    measurements: dict[str, Measurement] = {}
    if precision.source == CHOICE and precision.value in variants.SHORT_FORMATS:
        measurements = check_short_format(builder)
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

    Without enough time for it, the format is kept on a GPU and turned off on a CPU, where some kernels are many times
    slower in this format.
    """
    run = builder.run
    value = run.plan.value("precision")
    is_kept = run.device.type != "cpu"
    if CHECK_SHARE * run.total_steps < 2 * COMPARED_STEPS:
        text = f"too few steps to compare {value} with fp32"
    else:
        text, is_kept = _compare_short_format(builder, is_kept=is_kept)
    builder.say(Detail(f"tune: precision {text}"))
    return {"precision": Measurement(value if is_kept else OFF, text, evidence.format_date())}


def _compare_short_format(builder: VariantBuilder, *, is_kept: bool) -> tuple[str, bool]:
    """Compare the plan's short format with fp32; returns the result as text, and whether the format is kept.

    `is_kept` is the answer if there is not enough time.
    """
    run = builder.run
    value = run.plan.value("precision")
    plain = builder.build(run.plan.with_values({"precision": OFF}))
    short = builder.build(run.plan)
    reference = plain.read_numbers(False)
    short.deadline = time.monotonic() + MAX_CHECK_SECONDS
    try:
        numbers = short.read_numbers(False)
    except variants.TooSlow as error:
        return f"{value} {error}", is_kept
    difference = variants.find_difference(numbers, reference, variants.SHORT_FORMAT_TOLERANCE)
    if difference:
        return f"{value} vetoed: {difference}", False
    # The run reuses the kernels that the first steps have prepared, so only the time of these steps counts.
    step_seconds = plain.time_steps(1)
    share_seconds = (CHECK_SHARE * run.total_steps - 2 * COMPARED_STEPS) * step_seconds
    seconds = min(TIMED_SECONDS, share_seconds)
    if seconds < step_seconds + short.time_steps(1):
        return f"{value} not timed: no time left", is_kept
    pair = compare(plain.time_steps, short.time_steps, step_seconds, seconds)
    text = f"{value} {pair.format_spread()} against fp32 in steps of this job, loss ok"
    return text, pair.median >= variants.MIN_SPEEDUP


def find_reference_difference(builder: VariantBuilder, plan: Plan, deadline: float = math.inf) -> str | None:
    """Describe the first step whose loss or gradient norm differs from the reference by more than rounding.

    Raises:
        TooSlow: if the steps are not done by `deadline`.
    """
    on_gpu = builder.run.device.type == "cuda"
    active = [setting for setting in optimizations.every() if plan.value(setting.name) != setting.off]
    # Dropout masks that differ would look like wrong numbers.
    no_dropout = any(variants.changes_dropout(setting, plan, builder.facts, on_gpu) for setting in active)
    reference = builder.load_reference(no_dropout, plan, deadline)
    variant = builder.build(plan)
    variant.deadline = deadline
    return variants.find_difference(variant.read_numbers(no_dropout), reference, variants.choose_tolerance(plan))


def _turn_off(plan: Plan, suspects: Sequence[Optimization]) -> Plan:
    return plan.with_values({suspect.name: suspect.off for suspect in suspects})


def _list_suspects(plan: Plan) -> list[Optimization]:
    """List the active optimizations that the job did not request and that may round differently, latest stage first."""
    suspects = []
    for optimization in reversed(optimizations.every()):
        row = plan.decision(optimization.name)
        is_active_default = row.source == CHOICE and row.value != optimization.off
        # The whole process has the same threads, libraries and loader workers, in the reference too.
        is_switchable = optimization.stage not in (Stage.PROCESS, Stage.LOADER)
        if is_active_default and is_switchable and row.effect != Effect.EXACT:
            suspects.append(optimization)
    return suspects
