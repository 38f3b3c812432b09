"""Metrics that the values of a table do not have, where the job decides by them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow
import pyarrow.compute
import pytest
from pyarrow import parquet

from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job
from tests.data.tables.table_rows import job, make_mixed_rows, write_rows
from tests.messages import says


def test_a_metric_of_two_classes_is_refused_where_it_does_not_exist(tmp_path: Path) -> None:
    """Of one class alone `auc` was 0.5 in each epoch, and the loss chose the model without a word."""
    table = pyarrow.table(make_mixed_rows())
    train = write_rows(tmp_path, make_mixed_rows())
    parquet.write_table(table.filter(pyarrow.compute.field("y") == "big"), tmp_path / "big.parquet")
    for validation, is_refused in ((0.25, False), (str(tmp_path / "big.parquet"), True)):
        spec = job(train, validation=validation)
        spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"best": "validation/auc"})})
        if not is_refused:
            assert load(spec).heads[""].classes == ("big", "small")
            continue
        with pytest.raises(SpecError) as error:
            load(spec)
        assert error.value.problems[0].key == "checkpoint.best"
        assert says(error.value.problems[0].given, "all-of-one-class")


@pytest.mark.parametrize(
    ("task", "values", "metric", "is_refused"),
    [
        ("classification", ("low", "middle", "high"), "kappa", True),
        ("classification", ("1", "2", "10"), "kappa", False),
        ("regression", ("1", "2", "0"), "mape", True),
        ("regression", ("1", "2", "-3"), "mape", False),
    ],
)
def test_a_metric_that_these_values_do_not_have_is_refused(
    tmp_path: Path, task: str, values: tuple[str, ...], metric: str, is_refused: bool
) -> None:
    rows = [f"{number % 7},{values[number % 3]}" for number in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    text = (
        f"name: a\ntask: tabular-{task}\ndata: {{train: a.csv, target: y}}\ncheckpoint: {{best: validation/{metric}}}\n"
    )
    (tmp_path / "a.yaml").write_text(text)
    spec = load_job.load(tmp_path / "a.yaml")
    if not is_refused:
        assert load(spec)
        return
    with pytest.raises(SpecError) as error:
        load(spec)
    assert [problem.key for problem in error.value.problems] == ["checkpoint.best"]


@pytest.mark.parametrize(("column", "is_refused"), [("a", False), ("b", True)])
def test_the_mape_of_a_column_with_a_zero_is_refused(tmp_path: Path, column: str, is_refused: bool) -> None:
    rows = [f"{number % 7},{number + 1},{number % 3}" for number in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,a,b", *rows]) + "\n")
    (tmp_path / "t.yaml").write_text(
        "name: t\ntask: tabular-regression\ndata: {train: t.csv, target: [a, b]}\n"
        f"checkpoint: {{best: validation/{column}/mape}}\n"
    )
    spec = load_job.load(tmp_path / "t.yaml")
    with pytest.raises(SpecError) if is_refused else contextlib.nullcontext():
        load(spec)


def test_the_kappa_of_validation_samples_of_one_class_is_refused(tmp_path: Path) -> None:
    for name, classes in (("t", "12"), ("v", "1")):
        rows = [f"{number % 7},{classes[number % len(classes)]}" for number in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    (tmp_path / "t.yaml").write_text(
        "name: t\ntask: tabular-classification\ndata: {train: t.csv, validation: v.csv, target: y}\n"
        "checkpoint: {best: validation/kappa}\n"
    )
    with pytest.raises(SpecError):
        load(load_job.load(tmp_path / "t.yaml"))
