"""The numbers of a run that has not written its result."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from drivetrain.report.log_series import Series
from drivetrain.report.record import Record, read, summarize
from drivetrain.report.sections.body import data_section
from tests.report_folder import change_json, make_run

NAMES = [f"validation/{head}/{name}" for head in ("modo", "causa") for name in ("accuracy", "f1")]


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({}, "validation/causa/f1"),
        ({"checkpoint": {"best": "validation/modo/accuracy"}}, "validation/modo/accuracy"),
        ({"task": "of another version"}, "validation/modo/accuracy"),
        ({"data": {}}, "validation/modo/accuracy"),
    ],
    ids=["heaviest", "asked", "unknown task", "unreadable"],
)
def test_the_best_value_of_a_stopped_run_is_that_of_the_metric_that_chose_the_weights(
    changes: dict[str, Any], metric: str
) -> None:
    """With two heads the report showed the accuracy of the first one as the best value."""
    spec = {
        "name": "reports",
        "task": "text-classification",
        "data": {"train": "a.csv", "text": "t", "labels": {"modo": {"weight": 0.3}, "causa": {"weight": 0.7}}},
    }
    record = Record("reports-001")
    record.spec = spec | changes
    record.metrics = {name: Series(name, array("d", [1.0, 2.0]), array("d", [0.1, 0.2])) for name in NAMES}
    best = summarize(record).best
    assert best is not None
    assert (best.metric, best.value) == (metric, 0.2)


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
    section = data_section(Record("tiny-001", result={"data": notes}))
    assert section is not None
    (table,) = section.blocks
    assert [row[0] for row in table.rows] == ["samples", "channels 3"]
