"""In force: the plan of a run as its trainer has left it: settled, measured, and with smaller parts where memory ran out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runtime.files import read_json
from runtime.plan import Decision, Plan, load


def plan_of(run: Path) -> Plan:
    """The plan that a run folder holds.

    Raises:
        SpecError: if it holds none that can be read.
    """
    plan = load(run / "plan.json")
    rows = tuple(_learned(row, run) if row.name == "micro_batch" else row for row in plan.decisions)
    return replace(plan, decisions=rows)


def begun(run: Path) -> bool:
    """Whether a run has bits to keep: one that was stopped while it was measured is planned and measured anew."""
    return (run / "plan.json").exists() and any((run / "checkpoints").glob("step-*"))


def _learned(row: Decision, run: Path) -> Decision:
    """The micro-batch, smaller where a trainer ran out of memory in a step and has gone on with less."""
    steps = sorted((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    left = (read_json(steps[-1] / "state.json") or {}).get("micro_batch") if steps else None
    if not isinstance(left, int) or (row.value != "off" and left >= int(row.value)):
        return row
    reason = f"memory ran out with more than {left} samples at a time"
    return replace(row, value=left, source="memory", reason=reason, evidence=None, provisional=False)
