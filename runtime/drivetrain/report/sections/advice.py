"""Advice: at most three changes to the spec that would have helped this run, those about the model first.

Every rule is a function of the record alone: it checks one thing, and gives one piece of advice or none.
"""

from __future__ import annotations

from drivetrain.report.advice.machine_rules import JOB_RULES, MACHINE_RULES
from drivetrain.report.advice.model_rules import MODEL_RULES
from drivetrain.report.advice.recommendation import MIN_RUN_SECONDS, Advice
from drivetrain.report.blocks import Block, Section, Table, Text, Tone
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import read_integer

MAX_SUGGESTIONS = 3
FEW_SAMPLES = 1000
"""Validation samples below which advice is said to rest on few: a share of 0.9 of 1,000 is known to 0.02."""


def list_advice(record: Record, summary: Summary) -> list[Advice]:
    """List at most three changes: first for a better model, then by the time that they save."""
    suggestions = [advice for rule in JOB_RULES + MACHINE_RULES for advice in rule(record, summary)]
    faster = sorted(suggestions, key=lambda advice: -advice.weight)
    return [*list_model_advice(record, summary), *faster][:MAX_SUGGESTIONS]


def list_model_advice(record: Record, summary: Summary) -> list[Advice]:
    """List changes for a better model, or for a better estimate of its quality."""
    return [advice for rule in MODEL_RULES for advice in rule(record, summary)]


def advice_section(record: Record, summary: Summary) -> Section | None:
    """Return the advice as a table; None if the record is not sufficient for advice."""
    suggestions = list_advice(record, summary)
    if not suggestions and (not summary.phases or (summary.seconds or 0.0) < MIN_RUN_SECONDS):
        return None
    rows = tuple((advice.line, advice.change, advice.gain, advice.why) for advice in suggestions)
    table: Block = Table(("change in the job file", "what it does", "expected gain", "reason"), rows)
    no_advice = Text("No setting was found that would make this model better, or its run faster or safer.", Tone.GOOD)
    samples = read_integer(record.baselines, "validation_samples")
    if not samples or not list_model_advice(record, summary):
        return Section("advice", "Recommendations", (table if rows else no_advice,))
    few = ", which are few" if samples < FEW_SAMPLES else ""
    basis = f"Advice about the model rests on the {samples:,} validation samples that chose the epoch{few}."
    return Section("advice", "Recommendations", (table, Text(basis, Tone.QUIET)))
