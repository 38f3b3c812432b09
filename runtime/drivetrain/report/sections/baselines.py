"""The section on simple models: what they reach on the same data, beside the network."""

from __future__ import annotations

from drivetrain.report.baseline_results import CONSTANT, Comparison, compare_network, from_json
from drivetrain.report.blocks import Block, Section, Table, Text, Tone
from drivetrain.report.formatting import format_duration, format_number
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import read_mapping


def compare_best(record: Record, summary: Summary) -> Comparison | None:
    """The network beside the simple models, by the metric that chose its weights; None without either."""
    best = summary.best
    if best is None:
        return None
    metrics = {best.metric: best.value, **best.metrics}
    return compare_network(record.baselines, best.metric, metrics, str(read_mapping(record.spec, "model").get("name")))


def baselines_section(record: Record, summary: Summary) -> Section | None:
    """The metrics of the network and of each simple model; None for a run without them."""
    best = summary.best
    comparison = compare_best(record, summary)
    if best is None or comparison is None:
        return None
    ranked = comparison.sort_rows()
    rows = [*ranked, *(row for row in comparison.rows if row not in ranked)]
    network = {best.metric: best.value, **best.metrics, **summary.test}
    # Metrics that a simple model lacks, such as those of a head without labels, have an empty cell.
    metrics = dict.fromkeys([best.metric, *(name for row in rows for name in row.metrics)])
    columns = [network, *(row.metrics for row in rows)]
    table = Table(
        ("metric", "network", *(row.format_title() for row in rows)),
        (
            *((name, *(_format_cell(values.get(name)) for values in columns)) for name in metrics),
            ("time", format_duration(summary.seconds), *("" if row.name == CONSTANT else format_duration(row.seconds) for row in rows)),
        ),
    )
    verdict = comparison.describe_verdict()
    blocks: list[Block] = [Text(f"{verdict[:1].upper()}{verdict[1:]}."), table]
    _, skipped = from_json(record.baselines)
    blocks += [Text(f"No {row.name} model: {row.reason}.", Tone.QUIET) for row in skipped]
    blocks += [
        Text(
            f"The {row.format_title()}: fitted to {row.rows:,} of {row.of:,} training samples (baselines: full takes all).",
            Tone.QUIET,
        )
        for row in rows
        if row.rows < row.of
    ]
    return Section("baselines", "Against simple models", tuple(blocks))


def _format_cell(value: float | None) -> str:
    return "" if value is None else format_number(value)
