"""Numbers as people write them: other minus signs, accounting brackets, units, marks for no value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset
from drivetrain.data.formats import table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job import JOBS
from drivetrain.job_spec import data_cells
from drivetrain.job_spec import load_job as job_spec
from tests.messages import begins_with, get_message, says_each, says_only

NUMBERS = [round(float(v), 2) for v in np.random.default_rng(0).normal(0, 800, 60)]
MINUS = "\u2212"


def write(path: Path, cells: list[Any]) -> Path:
    """A file with these cells, a number and a class."""
    rows = [["temp", "z", "y"], *([cell, n * 7 % 5, "ab"[n % 2]] for n, cell in enumerate(cells))]
    path.write_text(
        "".join(";".join(f'"{cell}"' if ";" in str(cell) else str(cell) for cell in row) + "\n" for row in rows)
    )
    return path


def dataset(path: Path, **data: object) -> Dataset:
    keys = {"train": str(path), "target": "y", "validation": 0.25, **data}
    return load(
        JOBS["tabular-classification"].model_validate({"name": "t", "task": "tabular-classification", "data": keys})
    )


def read(path: Path, files: CsvFiles | None = None) -> list[Any]:
    return list(table_file.read(path, "data.train", csv=files)["temp"].to_pylist())


def format_accounting(value: float) -> str:
    return f"({-value:,.2f})" if value < 0 else f"{value:,.2f}"


FORMS: dict[str, Callable[[float], str]] = {
    "minus sign": lambda v: f"{v}".replace("-", MINUS),
    "wide hyphen": lambda v: f"{v}".replace("-", "\uff0d"),
    "dash": lambda v: f"{v}".replace("-", "\u2013"),
    "space behind the sign": lambda v: f"{v}".replace("-", "- "),
    "sign behind the number": lambda v: f"{-v}-" if v < 0 else f"{v}",
    "accounting": format_accounting,
    "accounting with a currency": lambda v: f"($ {-v:,.2f})" if v < 0 else f"$ {v:,.2f}",
    "currency and minus sign": lambda v: f"{v} €".replace("-", MINUS),
    "unit": lambda v: f"{v} °C",
    "unit without a space": lambda v: f"{v}°C",
    "known unit without a space": lambda v: f"{v}kWh",
    "unit of two words": lambda v: f"{v} kg CO2e".replace("CO2e", "eq"),
    "unit and minus sign": lambda v: f"{v} km/h".replace("-", MINUS),
    "decimal comma and unit": lambda v: f"{v} m²".replace(".", ","),
    "no-break space and unit": lambda v: f"{v}\u00a0bar",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_numbers_give_the_same_model(tmp_path: Path, form: str) -> None:
    plain, other = (
        write(tmp_path / "plain.csv", NUMBERS),
        write(tmp_path / "other.csv", [FORMS[form](v) for v in NUMBERS]),
    )
    assert read(other) == NUMBERS
    one, two = dataset(plain), dataset(other)
    for key in ("numeric", "categorical"):
        assert one.preprocessing[key] == two.preprocessing[key]
    rows = np.arange(len(one.train))
    assert [part.tolist() for part in one.train.gather(rows)] == [part.tolist() for part in two.train.gather(rows)]
    other_data = load_data.load_new([other], one.preprocessing, one.heads, labelled=True)
    plain_data = load_data.load_new([plain], two.preprocessing, two.heads, labelled=True)
    every = np.arange(len(NUMBERS))
    assert [part.tolist() for part in other_data.split.gather(every)] == [
        part.tolist() for part in plain_data.split.gather(every)
    ]


MARKS = ["?", "#N/D", "-", "--", ".", "n.d.", "s/d", "#DIV/0!", "#¡VALOR!", "<NA>", "\\N", "#NV", "NaT", "—"]


@pytest.mark.parametrize("mark", MARKS)
def test_marks_for_no_value(tmp_path: Path, mark: str) -> None:
    cells = [mark if n % 4 == 1 else value for n, value in enumerate(NUMBERS)]
    empty = dataset(write(tmp_path / "empty.csv", ["" if cell == mark else cell for cell in cells]))
    marked = dataset(write(tmp_path / "marked.csv", cells))
    assert marked.preprocessing["numeric"] == empty.preprocessing["numeric"]
    assert says_only(marked.notes, "temp-value-cell", "marked.csv", mark, 15)
    assert not any("no value" in note for note in empty.notes)
    new = write(tmp_path / "new.csv", [1.5, mark, -2])
    data = load_data.load_new([new], empty.preprocessing, empty.heads, labelled=True)
    assert data.split.gather(np.arange(3))[0][:, 1].tolist() == [0, 1, 0]
    alone = load_data.load_new([write(tmp_path / "alone.csv", [mark])], empty.preprocessing, empty.heads, labelled=True)
    assert alone.split.gather(np.arange(1))[0][:, 1].tolist() == [1]


def test_a_mark_is_a_category_among_categories(tmp_path: Path) -> None:
    data = dataset(write(tmp_path / "a.csv", ["red", "?", "blue", "-"] * 15))
    assert data.preprocessing["categorical"][0]["values"] == ["-", "?", "blue", "red"]


NO_NUMBERS = {
    "codes with a letter": ["12A", "13A", "14A", "15A"],
    "several units": ["5 kg", "500 g", "6 kg", "700 g"],
    "ranges": ["1-5", "6-10", "11-20", "21-30"],
    "versions": ["v1.2", "v1.3", "v2.0", "v2.1"],
    "addresses": ["12 Main St", "14 Main St", "3 Side St", "5 Side St"],
    "words in brackets": ["(a)", "(b)", "(c)", "(d)"],
    "morning and evening": ["5 AM", "7 AM", "5 PM", "7 PM"],
}


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_what_is_no_number_in_another_form_stays_as_written(tmp_path: Path, case: str) -> None:
    data = dataset(write(tmp_path / "a.csv", NO_NUMBERS[case] * 15))
    assert data.preprocessing["categorical"][0]["values"] == sorted(NO_NUMBERS[case])


def test_a_unit_belongs_to_the_model(tmp_path: Path) -> None:
    data = dataset(write(tmp_path / "a.csv", [f"{v} °C" for v in NUMBERS]))
    assert says_only(data.notes, "temp-read-without-sign", "a.csv")
    other = write(tmp_path / "other.csv", [f"{v} °F" for v in NUMBERS])
    with pytest.raises(DataError, match=r'column "temp" is in °C in the training data, and row 1 .* has `[-\d.]+°F`'):
        load_data.load_new([other], data.preprocessing, data.heads, labelled=True)
    bare = load_data.load_new([write(tmp_path / "bare.csv", NUMBERS)], data.preprocessing, data.heads, labelled=True)
    assert says_only(bare.notes, "temp-without-unit-read", "bare.csv")


def test_a_currency_belongs_to_the_model(tmp_path: Path) -> None:
    data = dataset(write(tmp_path / "a.csv", [f"{v} €" for v in NUMBERS]))
    with pytest.raises(DataError, match=r'column "temp" is in € in the training data, and row 1 .* has `[-\d.]+\$`'):
        load_data.load_new(
            [write(tmp_path / "b.csv", [f"{v} $" for v in NUMBERS])], data.preprocessing, data.heads, labelled=True
        )


def test_a_unit_in_some_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'column "temp" is in °C, and row 60 .* has `3` without the sign'):
        dataset(write(tmp_path / "a.csv", [*(f"{v} °C" for v in NUMBERS[:-1]), 3]))


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        pytest.param([1, 2, 3, "x"], "75% of its cells are numbers; the others are `x` (15)", id="a word"),
        pytest.param(
            [1, 2.5, "x", "y y"], "50% of its cells are numbers; the others are `x` (15), `y y` (15)", id="words"
        ),
        pytest.param(["5 kg", "500 g"] * 2, "100% of its cells are numbers; in different forms or units", id="units"),
        pytest.param(
            [f"{MINUS}1", "(2)", "x", "3"], "75% of its cells are numbers; the others are `x` (15)", id="signs"
        ),
    ],
)
def test_a_category_of_mostly_numbers_has_a_line_of_its_own(tmp_path: Path, cells: list[Any], line: str) -> None:
    data = dataset(write(tmp_path / "a.csv", cells * 15))
    assert data.preprocessing["categorical"][0]["name"] == "temp"
    (note,) = [note for note in data.notes if "although" in note]
    assert begins_with(note, "is-category-although", "temp", line)


def test_a_category_of_some_numbers_has_none(tmp_path: Path) -> None:
    for name, cells, options in (("a", ["x", "y", 3], {}), ("b", [1, 2, 3, "x"], {"categorical": ["temp"]})):
        data = dataset(write(tmp_path / f"{name}.csv", cells * 15), **options)
        assert not [note for note in data.notes if "although" in note]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("missing", ["-999", "n0ne"])
def test_cells_that_the_job_calls_missing(tmp_path: Path, suffix: str, missing: str) -> None:
    """In numbers, categories, truth values, dates and the target; in new data, too."""
    count = 60
    gap = np.arange(count) % 6 == 1
    text = suffix == ".csv" or missing != "-999"
    columns: dict[str, list[Any]] = {
        "n": [None if g else float(v) for v, g in zip(NUMBERS, gap, strict=True)],
        "kind": [None if g else "abc"[n % 3] for n, g in enumerate(gap)],
        "y": [None if n == 5 else "uv"[n % 2] for n in range(count)],
    }
    if suffix == ".csv":
        columns["day"] = [None if g else f"2024-01-{1 + n % 28:02}" for n, g in enumerate(gap)]
        columns["good"] = [None if g else ("true", "false")[n % 2] for n, g in enumerate(gap)]
    marked = {name: [missing if cell is None else cell for cell in cells] for name, cells in columns.items()}
    if not text:  # a column of numbers has numbers only
        marked["n"] = [-999.0 if cell is None else cell for cell in columns["n"]]
    elif suffix != ".csv":
        marked["n"] = columns["n"]
    options: dict[str, Any] = {"bad_samples": 0.1} | ({"dates": {"day": ["day"]}} if "day" in columns else {})
    empty = dataset(store(tmp_path / f"empty{suffix}", columns), **options)
    data = dataset(store(tmp_path / f"marked{suffix}", marked), missing=missing, **options)
    assert data.preprocessing["missing"] == [missing]
    for key in ("numeric", "categorical"):
        assert data.preprocessing[key] == empty.preprocessing[key]
    assert len(data.train) + len(data.validation) == count - 1
    one = load_data.load_new([tmp_path / f"marked{suffix}"], data.preprocessing, data.heads, labelled=False)
    other = load_data.load_new([tmp_path / f"empty{suffix}"], empty.preprocessing, empty.heads, labelled=False)
    every = np.arange(count)
    assert [part.tolist() for part in one.split.gather(every)] == [part.tolist() for part in other.split.gather(every)]


def store(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in pyarrow.table(columns).to_pylist()))
    else:
        rows = [columns, *zip(*columns.values(), strict=True)]
        path.write_text("".join(",".join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows))
    return path


def test_validate_knows_the_cells_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", NUMBERS)
    path = store(tmp_path / "b.csv", {"x": [1, 2, 3, 4] * 5, "y": ["a", "b", "a", "gone"] * 5})
    spec = "name: t\ntask: tabular-classification\ndata: {train: b.csv, target: y, missing: gone, bad_samples: 0.5}\n"
    (tmp_path / "job.yaml").write_text(spec)
    problems = data_cells.check(job_spec.load(tmp_path / "job.yaml"))
    assert any("5 of 20" in line for line in problems), (path, problems)


@pytest.mark.parametrize("form", FORMS)
def test_validate_takes_what_training_takes(tmp_path: Path, form: str) -> None:
    write(tmp_path / "a.csv", [FORMS[form](value) for value in NUMBERS])
    spec = "name: t\ntask: tabular-regression\ndata: {train: a.csv, target: temp, ignore: y}\n"
    (tmp_path / "job.yaml").write_text(spec)
    job = job_spec.load(tmp_path / "job.yaml")
    assert not [line for line in data_cells.check(job) if "cannot be used" in line]
    data = load(job)
    assert len(data.train) + len(data.validation) == len(NUMBERS)


@pytest.mark.parametrize("cell", ["12A", "soon", "5-7", "(a)", "kg", "12 - 13"])
def test_validate_refuses_what_is_no_number(tmp_path: Path, cell: str) -> None:
    write(tmp_path / "a.csv", [*NUMBERS[:-1], cell])
    spec = "name: t\ntask: tabular-regression\ndata: {train: a.csv, target: temp, ignore: y, bad_samples: 0.1}\n"
    (tmp_path / "job.yaml").write_text(spec)
    (note,) = [line for line in data_cells.check(job_spec.load(tmp_path / "job.yaml")) if "temp is" in line]
    assert f"temp is `{cell}`, not a number" in note


@pytest.mark.parametrize("mark", ["?", "-", "#N/D", "s/d"])
def test_marks_for_no_value_among_truth_values(tmp_path: Path, mark: str) -> None:
    cells = [("true", "False", mark)[n % 3] for n in range(60)]
    empty = dataset(write(tmp_path / "empty.csv", ["" if cell == mark else cell for cell in cells]))
    marked = dataset(write(tmp_path / "marked.csv", cells))
    assert marked.preprocessing["numeric"] == empty.preprocessing["numeric"]
    assert [column["name"] for column in marked.preprocessing["numeric"]] == ["temp", "z"]
    assert says_only(marked.notes, "temp-value-cell", "marked.csv", mark, 20)


def test_a_file_with_commas_and_without_the_unit_says_so(tmp_path: Path) -> None:
    data = dataset(store(tmp_path / "a.csv", {"temp": [f"{v} °C" for v in NUMBERS], "y": ["a", "b"] * 30}))
    new = store(tmp_path / "b.csv", {"temp": NUMBERS, "y": ["a", "b"] * 30})
    notes = load_data.load_new([new], data.preprocessing, data.heads, labelled=True).notes
    assert says_each(notes, [get_message("temp-without-unit-read", "b.csv")])
