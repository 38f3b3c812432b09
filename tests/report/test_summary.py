"""The numbers of a run that has not written its result, and the notes on its data."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.report.blocks import Table
from drivetrain.report.record import Record, read, summarize
from drivetrain.report.run_sections import list_run_sections
from tests.report_folder import change_json, make_run


def test_a_stopped_run_says_by_which_metric_its_data_let_it_choose(tmp_path: Path) -> None:
    """With uneven classes the loss chooses; the report of a killed run named f1, and its best epoch."""
    run = make_run(tmp_path / "a-001")
    (run / "result.json").unlink()
    change_json(run / "state.json", lambda state: state.update(status="stopped"))
    (run / "progress.json").write_text(json.dumps({"best": "validation/loss"}))
    best = summarize(read(run)).best
    assert best is not None
    assert best.metric == "validation/loss"


def test_no_row_of_the_data_lacks_its_item() -> None:
    """The first row, the numbers of samples, had an empty cell before it."""
    notes = ["144 training and 16 validation images, 2 classes", "channels 3: some are in color"]
    record = Record("tiny-001", result={"data": notes})
    (section,) = list_run_sections(record, summarize(record))
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["samples", "channels 3"]
