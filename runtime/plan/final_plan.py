"""Finalizes the plan once model and data are known: provisional decisions are made again, measurements are applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from runtime import optimizations
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job.workload import Workload
from runtime.plan.evidence import Measurement
from runtime.plan.plan import LEARNED, OPEN, Plan, resolve, written


def settle(
    job: Job,
    machine: Hardware,
    stored: Plan,
    workload: Workload,
    say: Callable[[str], None],
    measured: Mapping[str, Measurement] | None = None,
) -> Plan:
    """The final plan.

    Args:
        stored: the plan so far; final decisions stay, unless they were measured since.
        workload: properties of model and data.
        say: reports changes.
        measured: measurements by decision.
    """
    known = measured or {}
    values = {
        d.name: d.value
        for d in stored.decisions
        if not d.provisional and d.source != "job" and not (d.source in OPEN and d.name in known)
    }
    plain = all(d.source == "plain" for d in stored.decisions)
    fresh = resolve(job, machine, workload, plain=plain, replay=values, measured=measured)
    before = {d.name: d for d in stored.decisions}
    rows = []
    for row in fresh.decisions:
        old = before[row.name]
        if row.source == "file" and old.value == row.value:
            row = replace(row, source=old.source, reason=old.reason, evidence=old.evidence)
        if old.source in LEARNED:
            row = old
        if old.value != row.value:
            say(f"plan: {row.name} changed from {written(old.value)} to {written(row.value)}: {row.reason}")
        rows.append(row)
    off = {o.name: o.off for o in optimizations.every()}
    changing = [r.name for r in rows if r.effect == optimizations.Effect.TRAINING and r.value != off[r.name]]
    if changing:
        say(f"plan: {', '.join(changing)} changes the training result here (BatchNorm), as set in the job")
    return replace(fresh, decisions=tuple(rows))
