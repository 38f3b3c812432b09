"""Dates as features: the numbers that the job names, the same for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv, parquet

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.errors import DataError, SpecError
from drivetrain.job_spec import load_job as job_spec

SPEC = "name: a\ntask: tabular-classification\ndata: {train: %s, target: y, validation: 0.2, %s}\n"


def rows(form: str, count: int = 60) -> str:
    """Days of 2024 in one form, and a class."""
    lines = [f"{form.format(d=1 + i % 28, m=1 + i % 12, y=2020 + i % 5)},{i % 7},{'ab'[i % 2]}" for i in range(count)]
    return "\n".join(["since,x,y", *lines]) + "\n"


def load_rows(folder: Path, text: str, options: str) -> Dataset:
    (folder / "rows.csv").write_text(text)
    (folder / "job.yaml").write_text(SPEC % ("rows.csv", options))
    return load(job_spec.load(folder / "job.yaml"))


def names(data: Dataset) -> list[str]:
    return [number["name"] for number in data.preprocessing["numeric"]]


def values(data: Dataset, new: Path) -> list[float]:
    """The numbers of the first new row, as they are before scaling."""
    read = load_data.load_new([new], data.preprocessing, data.heads, labelled=False)
    (numbers,) = read.split.gather(np.array([0]))
    scales = data.preprocessing["numeric"]
    return [round(float(v) * s["std"] + s["mean"], 3) for v, s in zip(numbers[0], scales, strict=True)]


@pytest.mark.parametrize(
    ("form", "options", "new"),
    [
        ("{y}-{m:02}-{d:02}", "", "2024-02-29"),
        ("{y}-{m:02}-{d:02} 06:30:00", "", "2024-02-29 06:30:00"),
        ("{d:02}.{m:02}.{y}", ', date_format: "%d.%m.%Y"', "29.02.2024"),
        ("{m:02}/{d:02}/{y}", ', date_format: "%m/%d/%Y"', "02/29/2024"),
        ("{d:02}.{m:02}.{y}", ', date_format: "%d.%m.%Y"', "2024-02-29"),
        ("{d:02}.{m:02}.{y}", "", "2024-02-29"),
        ("{y}{m:02}{d:02}", "", "02/29/2024"),
        ("{y}-{m:02}-{d:02}", "", "20240229"),
    ],
)
def test_the_numbers_of_a_date(tmp_path: Path, form: str, options: str, new: str) -> None:
    parts = "[year, month, day, weekday, days]"
    data = load_rows(tmp_path, rows(form), f"dates: {{since: {parts}}}{options}")
    assert names(data) == ["x", "since.year", "since.month", "since.day", "since.weekday", "since.days"]
    (tmp_path / "new.csv").write_text(f"x,since\n3,{new}\n")
    days = 19782 + (0.271 if ":" in new else 0)
    assert values(data, tmp_path / "new.csv") == pytest.approx([3, 2024, 2, 29, 3, days], abs=0.01)


def test_empty_cells_and_parquet_and_the_time_of_day(tmp_path: Path) -> None:
    text = rows("{y}-{m:02}-{d:02} {m:02}:15:00") + ",1,a\n,2,b\n,3,a\n"
    data = load_rows(tmp_path, text, "dates: {since: [hour, minute, month]}")
    assert names(data) == ["x", "since.hour", "since.minute", "since.month"]
    assert [number["missing"] for number in data.preprocessing["numeric"]] == [False, True, True, True]
    parquet.write_table(csv.read_csv(tmp_path / "rows.csv"), tmp_path / "rows.parquet")
    (tmp_path / "job.yaml").write_text(SPEC % ("rows.parquet", "dates: {since: [hour, minute, month]}"))
    same = load(job_spec.load(tmp_path / "job.yaml"))
    assert same.preprocessing == data.preprocessing


def test_a_named_feature(tmp_path: Path) -> None:
    data = load_rows(tmp_path, rows("{y}-{m:02}-{d:02}"), "features: [since], dates: {since: [month]}")
    assert names(data) == ["since.month"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (rows("{y}-{m:02}-{d:02}"), "bad_samples: 0", r"data.dates: \{since: \[year, month, weekday\]\}"),
        (
            rows("{m:02}/{m:02}/{y}"),
            "dates: {since: [month]}",
            'row 1 .line 2. has `01/01/2020`\n.*\n.*set data.date_format: "%d/%m/%Y" if the day comes first, "%m/%d/%Y" if',
        ),
        (
            rows("{y}Q{d}"),
            "dates: {since: [month]}",
            "is string, and has no known form of times: row 1 .line 2. has `2020Q1`",
        ),
        (rows("{m:02}:{d:02}"), "dates: {since: [hour, month]}", "without a date, and no month"),
        (
            rows("{d:02}.{m:02}.{y}"),
            'dates: {since: [month]}, date_format: "%m.%d.%Y"',
            'cells of column "since" of .* are no dates in the form %m.%d.%Y: row 13 .line 14. has `13.01.2022`',
        ),
        (
            rows("{d:02}.{m:02}.{y}") + "31.02.2024,1,a\n",
            'bad_samples: 0, dates: {since: [day]}, date_format: "%d.%m.%Y"',
            "row 61 .line 62.: since is `31.02",
        ),
        (
            rows("{d:02}.{m:02}.{y}") + "07.02.24,1,a\n",
            'bad_samples: 0, dates: {since: [day]}, date_format: "%d.%m.%Y"',
            "row 61 .line 62.: since is `07.02.24`, no date",
        ),
        (
            rows("{d}"),
            "dates: {since: [month]}",
            'column "since" of .* is int64, and has no known form of times: row 1 .line 2. has `1`',
        ),
    ],
)
def test_what_is_no_date(tmp_path: Path, text: str, options: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_rows(tmp_path, text, options)


@pytest.mark.parametrize("clock", ["", " 08:30:00", "T08:30:00Z"])
@pytest.mark.parametrize("odd", ["0000-00-00", "soon", "2024-13-01", "2024-02-30"])
def test_one_cell_that_is_no_date_loses_its_row_alone(tmp_path: Path, clock: str, odd: str) -> None:
    """The other rows are those of a file in which the cell is empty, and the row is named."""
    good = rows("{y}-{m:02}-{d:02}" + clock)
    data = load_rows(tmp_path, good + f"{odd},1,a\n", "dates: {since: [month, days]}")
    assert [note for note in data.notes if "row 61 (line 62): since is `" + odd + "`, no date" in note]
    assert data.preprocessing == load_rows(tmp_path, good, "dates: {since: [month, days]}").preprocessing
    (tmp_path / "new.csv").write_text(f"x,since\n3,2024-02-29{clock}\n4,{odd}\n")
    read = load_data.load_new([tmp_path / "new.csv"], data.preprocessing, data.heads, labelled=False)
    assert (len(read.split), read.split.title(0)) == (1, "new.csv row 1")
    with pytest.raises(DataError, match="row 61 .line 62.: since is `" + odd):
        load_rows(tmp_path, good + f"{odd},1,a\n", "bad_samples: 0, dates: {since: [month]}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("dates: {since: [moon]}", "data.dates.since"),
        ("dates: {since: []}", "data.dates.since"),
        ("dates: {since: [month]}, ignore: since", "data.ignore: has 'since', which data.dates has too"),
        ("dates: {since: [month]}, features: x", "data.dates: has 'since', which data.features does not have"),
        ('date_format: "%d"', "data.date_format: is given without data.dates"),
    ],
)
def test_wrong_specs(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_rows(tmp_path, rows("{y}-{m:02}-{d:02}"), options)
    assert message in str(caught.value)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'data.dates: .*rows.csv has no column "until"'):
        load_rows(tmp_path, rows("{y}-{m:02}-{d:02}"), "dates: {until: [month]}, ignore: since")


def test_a_column_that_dates_make_is_in_the_file_already(tmp_path: Path) -> None:
    text = rows("{y}-{m:02}-{d:02}").replace("since,x,y", "since,since.year,y")
    with pytest.raises(
        DataError, match=r'data.train: .*rows.csv has a column "since.year", which data.dates makes, too'
    ):
        load_rows(tmp_path, text, "dates: {since: [month, year]}")
    assert names(load_rows(tmp_path, text, "dates: {since: [month]}")) == ["since.year", "since.month"]
    assert names(load_rows(tmp_path, text, "dates: {since: [year]}, ignore: since.year")) == ["since.year"]


def test_the_columns_of_a_file() -> None:
    rule = DateFeatures({"since": ["month", "day"]})
    feature_columns: dict[str, Any] = {"a": ["a"], "b": ["since.month"]}
    assert [rule.list_source_columns(columns) for columns in feature_columns.values()] == [["a"], ["since"]]
