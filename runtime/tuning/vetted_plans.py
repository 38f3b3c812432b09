"""Checks the numbers of plans before they are used: the defaults, and results measured with other data or settings."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runtime import optimizations
from runtime.optimizations import Effect, Optimization, Stage
from runtime.plan import evidence
from runtime.plan.evidence import Measurement
from runtime.plan.plan import OPEN, Plan, written
from runtime.tuning import variants
from runtime.tuning.tuner_state import TunerState
from runtime.tuning.variant_builder import VariantBuilder


def again(builder: VariantBuilder, known: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """Results from other data or settings, if their losses also match under the current settings; else none."""
    before = f"tune: measured before, on {next(iter(known.values())).date}, with other data or settings"
    vetoed = [name for name, row in known.items() if row.vetoed]
    if vetoed:
        builder.say(f"{before}, which rejected a value of {vetoed[0]}; measuring again")
        return {}
    plan = builder.made.plan
    for name, row in known.items():
        plan = plan.with_values({name: row.value})
    wrong = wrong_numbers(builder, plan)
    builder.say(
        f"{before}; {f'with these settings the loss differs ({wrong}); measuring again' if wrong else 'loss ok'}"
    )
    return {} if wrong else dict(known)


def defaults(builder: VariantBuilder, contest: TunerState, until: float) -> None:
    """Turn off defaults that compute wrong numbers.

    Args:
        builder: does the measurements.
        contest: the state, with the default plan.
        until: deadline, on the monotonic clock.
    """
    try:
        wrong = wrong_numbers(builder, contest.plan, until)
    except variants.TooSlow as slow:
        builder.say(f"tune: the default settings were {slow}")
        return
    if wrong is None:
        return
    suspects = _suspects(contest.plan)
    without = {one.name: contest.plan.with_values({one.name: one.off}) for one in suspects}
    alone = next((one for one in suspects if wrong_numbers(builder, without[one.name]) is None), None)
    if alone is None and (still := wrong_numbers(builder, _all_off(contest.plan, suspects))):
        builder.say(f"warning: the settings of the job change the loss: {still}")
        return
    for one in [alone] if alone else suspects:
        value = contest.plan.value(one.name)
        text = f"{written(value)} vetoed: {wrong}"
        contest.tried[(one.name, value)] = [(0.0, contest.plan)]
        contest.found[one.name] = Measurement(one.off, text, evidence.today())
        contest.plan = contest.plan.with_values({one.name: one.off})
        builder.say(f"tune: {one.name} {text}")
    contest.incumbent = builder.arm(contest.plan)


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
