"""The section of the final test: its metrics beside those of the validation that chose the weights."""

from __future__ import annotations

from drivetrain.report.blocks import Block, Section, Table, Text, Tone
from drivetrain.report.confusion import HEADER, read_confusions, read_label_tables
from drivetrain.report.formatting import format_json, format_number
from drivetrain.report.record import Record
from drivetrain.report.summary import Summary
from drivetrain.system.run_records import read_mapping, read_number


def final_test_section(record: Record, summary: Summary) -> Section | None:
    """Metrics of the test beside those of the best validation; None without a test."""
    if not summary.test:
        return None
    test = record.result["test"]
    validation_metrics = read_mapping(read_mapping(record.result, "best"), "metrics")
    rows = []
    for name, value in summary.test.items():
        metric = name.removeprefix("test/")
        validation_value = read_number(validation_metrics, f"validation/{metric}")
        validation = "-" if validation_value is None else format_number(validation_value)
        rows.append((format_json(metric), format_number(value), validation))
    about = f"{format_number(read_number(test, 'samples'))} samples of {format_json(test.get('data'))}, evaluated once, after the training."
    blocks: list[Block] = [Text(about, Tone.QUIET), Table(("metric", "test", "validation"), tuple(rows))]
    blocks += read_confusions(test.get("confusion"))
    tables = read_label_tables(test.get("confusion"))
    blocks += [Table(HEADER, tuple(row.format_cells() for row in table.rows)) for table in tables]
    return Section("test", "Final test", tuple(blocks))
