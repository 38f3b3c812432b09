"""Finalizes the plan once model and data are known: provisional decisions are made again, measurements are applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from drivetrain import optimizations
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import CHOICE, LEARNED, Decision, Plan, format_value, resolve
from drivetrain.system.console import Detail


def finalize(
    job: Job,
    machine: Hardware,
    stored: Plan,
    workload: Workload,
    say: Callable[[str], None],
    measured: Mapping[str, Measurement] | None = None,
) -> Plan:
    """Return the final plan.

    Args:
        stored: the plan so far; final decisions stay, unless they were measured since.
        workload: properties of model and data.
        say: reports changes, as details, and settings that change the training result.
        measured: measurements by decision.
    """
    plan = refine(stored, job, machine, workload, measured)
    for row in plan.decisions:
        old = stored.decision(row.name)
        if old.value != row.value:
            change = f"{row.name} changed from {format_value(old.value)} to {format_value(row.value)}"
            say(Detail(f"plan: {change}: {row.reason}"))
    training_names = [row.name for row in plan.list_enabled() if row.effect == optimizations.Effect.TRAINING]
    if training_names:
        say(f"plan: {', '.join(training_names)} changes the training result here (BatchNorm), as set in the job")
    return plan


def list_changes(stored: Plan, present: Plan) -> list[str]:
    """List the decisions that no longer hold in a run that resumes, a line for each with its reason."""
    lines = []
    for row in present.decisions:
        old_value = stored.decision(row.name).value
        if old_value != row.value:
            change = f"{row.name} is {format_value(row.value)}, was {format_value(old_value)}: {row.reason}"
            lines.append(f"{change}; results may no longer be bit-identical to those of an uninterrupted run")
    return lines


def refine(
    stored: Plan, job: Job, machine: Hardware, workload: Workload, measured: Mapping[str, Measurement] | None = None
) -> Plan:
    """Return the stored plan, with provisional decisions made again and measurements applied."""
    measurements = measured or {}
    values = {
        row.name: row.value
        for row in stored.decisions
        if not row.provisional and row.source != "job" and not (row.source == CHOICE and row.name in measurements)
    }
    is_plain = all(row.source == "plain" for row in stored.decisions)
    new_plan = resolve(job, machine, workload, plain=is_plain, replay=values, measured=measured)
    return new_plan.with_rows(_keep_reason(row, stored.decision(row.name)) for row in new_plan.decisions)


def _keep_reason(row: Decision, old: Decision) -> Decision:
    """Return the old row if its value was learned from a failure; else the new row, with the old reason for an unchanged value."""
    if old.source in LEARNED:
        return old
    if row.source == "file" and old.value == row.value:
        return replace(row, source=old.source, reason=old.reason, evidence=old.evidence)
    return row
