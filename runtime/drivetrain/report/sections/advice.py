"""Advice: at most three changes to the spec that would have helped this run, each with its expected gain.

Every rule is a function of the record alone: it checks one thing, and gives one piece of advice or none.
"""

from __future__ import annotations

from drivetrain.report.advice.job_rules import JOB_RULES
from drivetrain.report.advice.machine_rules import MACHINE_RULES
from drivetrain.report.advice.recommendation import MIN_RUN_SECONDS, Advice
from drivetrain.report.blocks import Block, Section, Table, Text, Tone
from drivetrain.report.record import Record
from drivetrain.report.summary import Summary

MAX_SUGGESTIONS = 3


def advice(record: Record, summary: Summary) -> list[Advice]:
    """Suggested changes, most helpful first; empty for a run that is too short."""
    suggestions = [advice for rule in JOB_RULES + MACHINE_RULES for advice in rule(record, summary)]
    return sorted(suggestions, key=lambda one: -one.weight)[:MAX_SUGGESTIONS]


def advice_section(record: Record, summary: Summary) -> Section | None:
    """The advice as a table; None if the record is not sufficient for advice."""
    suggestions = advice(record, summary)
    if not suggestions and (not summary.phases or (summary.seconds or 0.0) < MIN_RUN_SECONDS):
        return None
    rows = tuple((one.line, one.change, one.gain, one.why) for one in suggestions)
    table: Block = Table(("change in the job file", "what it does", "expected gain", "reason"), rows)
    nothing = Text("No setting was found that would make this run faster or safer.", Tone.GOOD)
    return Section("advice", "Recommendations", (table if rows else nothing,))
