"""The section of the final test: its metrics beside those of the validation that chose the weights."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.report.blocks import Block, ConfusionMatrix, Section, Table, Text, Tone
from drivetrain.report.confusion import HEADER, confusions, label_tables
from drivetrain.report.formatting import format_json, number
from drivetrain.report.log_series import number as numeric
from drivetrain.report.record import Record
from drivetrain.report.summary import Summary


def final_test_section(record: Record, summary: Summary) -> Section | None:
    """Metrics of the test beside those of the best validation; None without a test."""
    if not summary.test:
        return None
    test, best = record.result["test"], record.result.get("best")
    validation_metrics = best.get("metrics") if isinstance(best, Mapping) else None
    rows = []
    for name, value in summary.test.items():
        validation_value = (
            numeric(validation_metrics, f"validation/{name.removeprefix('test/')}")
            if isinstance(validation_metrics, Mapping)
            else None
        )
        rows.append(
            (
                format_json(name.removeprefix("test/")),
                number(value),
                "-" if validation_value is None else number(validation_value),
            )
        )
    about = f"{number(numeric(test, 'samples'))} samples of {format_json(test.get('data'))}, evaluated once, after the training."
    blocks: list[Block] = [Text(about, Tone.QUIET), Table(("metric", "test", "validation"), tuple(rows))]
    blocks += [ConfusionMatrix(confusion) for confusion in confusions(test.get("confusion"))]
    tables = label_tables(test.get("confusion"))
    blocks += [Table(HEADER, tuple(row.cells() for row in table.rows)) for table in tables]
    return Section("test", "Final test", tuple(blocks))
