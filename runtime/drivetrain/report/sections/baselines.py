"""The section on simple models: what they reach on the same data, beside the network."""

from __future__ import annotations

from drivetrain.report.baseline_results import CONSTANT, Baseline, Comparison, compare, from_json
from drivetrain.report.blocks import Block, Section, Table, Text, Tone
from drivetrain.report.formatting import duration, number
from drivetrain.report.record import Record
from drivetrain.report.summary import Summary


def baselines_section(record: Record, summary: Summary) -> Section | None:
    """The metrics of the network and of each simple model; None for a run without them."""
    best = summary.best
    comparison = compare(record.baselines, best.metric, {best.metric: best.value, **best.metrics}) if best else None
    if best is None or comparison is None:
        return None
    ranked = comparison.sort_rows()
    rows = [*ranked, *(row for row in comparison.rows if row not in ranked)]
    network = {best.metric: best.value, **best.metrics, **summary.test}
    # Metrics that a simple model lacks, such as those of a head without labels, have an empty cell.
    metrics = dict.fromkeys([best.metric, *(name for row in rows for name in row.metrics)])
    table = Table(
        ("metric", "network", *(row.title() for row in rows)),
        (
            *((name, _cell(network.get(name)), *(_cell(row.metrics.get(name)) for row in rows)) for name in metrics),
            ("time", duration(summary.seconds), *(_time(row) for row in rows)),
        ),
    )
    blocks: list[Block] = [Text(_sentence(comparison)), table]
    _, skipped = from_json(record.baselines)
    blocks += [Text(f"No {row.name} model: {row.reason}.", Tone.QUIET) for row in skipped]
    blocks += [
        Text(
            f"The {row.title()}: fitted to {row.rows:,} of {row.of:,} training samples (baselines: full takes all).",
            Tone.QUIET,
        )
        for row in rows
        if row.rows < row.of
    ]
    return Section("baselines", "Against simple models", tuple(blocks))


def _sentence(comparison: Comparison) -> str:
    verdict = comparison.verdict()
    return f"{verdict[:1].upper()}{verdict[1:]}."


def _cell(value: float | None) -> str:
    return "" if value is None else number(value)


def _time(row: Baseline) -> str:
    return "" if row.name == CONSTANT else duration(row.seconds)
