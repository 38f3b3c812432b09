"""The section of the final test: its metrics beside those of the validation that chose the weights."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.report.blocks import Block, ConfusionMatrix, Section, Table, Text, Tone
from runtime.report.confusion import confusions
from runtime.report.formatting import number, shown
from runtime.report.labels import HEADER, label_tables
from runtime.report.log_series import number as numeric
from runtime.report.record import Record
from runtime.report.summary import Summary


def final_test_section(record: Record, summary: Summary) -> Section | None:
    """Metrics of the test beside those of the best validation; None without a test."""
    if not summary.test:
        return None
    found, best = record.result["test"], record.result.get("best")
    held = best.get("metrics") if isinstance(best, Mapping) else None
    rows = []
    for name, value in summary.test.items():
        twin = numeric(held, f"validation/{name.removeprefix('test/')}") if isinstance(held, Mapping) else None
        rows.append((shown(name.removeprefix("test/")), number(value), "-" if twin is None else number(twin)))
    about = f"{number(numeric(found, 'samples'))} samples of {shown(found.get('data'))}, evaluated once, after the training."
    blocks: list[Block] = [Text(about, Tone.QUIET), Table(("metric", "test", "validation"), tuple(rows))]
    blocks += [ConfusionMatrix(confusion) for confusion in confusions(found.get("confusion"))]
    tables = label_tables(found.get("confusion"))
    blocks += [Table(HEADER, tuple(row.cells() for row in table.rows)) for table in tables]
    return Section("test", "Final test", tuple(blocks))
