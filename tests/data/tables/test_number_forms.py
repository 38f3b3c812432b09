"""Numbers as people write them: other minus signs, accounting brackets, marks for no value, and other cells with digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.cli import main
from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset
from drivetrain.data.formats import table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.load_data import load
from drivetrain.data.tables import text_column
from drivetrain.errors import DataError
from drivetrain.job_spec import data_cells
from drivetrain.job_spec import load_job as job_spec
from drivetrain.tasks import JOBS
from tests.messages import get_message, saying, says_each, says_only

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


def test_a_currency_belongs_to_the_model(tmp_path: Path) -> None:
    data = dataset(write(tmp_path / "a.csv", [f"{v} €" for v in NUMBERS]))
    with pytest.raises(DataError, match=r'column "temp" is in € in the training data, and row 1 .* has `[-\d.]+\$`'):
        load_data.load_new(
            [write(tmp_path / "b.csv", [f"{v} $" for v in NUMBERS])], data.preprocessing, data.heads, labelled=True
        )


def read_remarks(path: Path) -> str:
    """The comments of a draft, whose lines are wrapped, in one line."""
    return " ".join(path.read_text().replace("\n#", " ").split())


FEW = [4, 8, 15, 16, 23, 42]
DIGITS: dict[str, Callable[[int], str]] = {
    "a unit": lambda v: f"{v} °C",
    "a unit without a space": lambda v: f"{v}kWh",
    "two units": lambda v: f"{v} kg" if v < 16 else f"{v} g",
    "a currency in letters": lambda v: f"EUR {v}.5M",
    "a formula of a spreadsheet": lambda v: f'="{v}.5"',
    "an apostrophe": lambda v: f"'{v}.5",
    "feet": lambda v: f"{v % 7}'{v}",
    "open above": lambda v: f"{v}+",
    "minutes": lambda v: f"{v}:{v + 60}",
    "a fraction": lambda v: f"{v}/4",
    "a comparison": lambda v: f"<{v}",
    "about": lambda v: f"~{v}" if v > 8 else f"{v}",
    "a word": lambda v: f"{v}" if v > 8 else "varies",
    "Fortran": lambda v: f"{v}.5D+01",
}


@pytest.mark.parametrize(
    "cells",
    [
        [f"store_{n}" for n in range(30)],
        [f"c{n}" for n in range(30)],
        ["Q1", "Q2", "Q3", "Q4"],
        ["ward 7", "ward 9", "home"],
        ["<18", "18-24", "25 - 34", "35\u201344", "65+"],
        ["[0-10)", "[10-20)", "[90-100]"],
        ["0-5 years", "5-10 years", "over 10 years"],
        ["$0 to $10,000", "$10,000 to $20,000"],
    ],
)
def test_labels_with_digits_need_no_line(cells: list[str]) -> None:
    assert not text_column.note_digits("x", dict.fromkeys(cells, 9))
    assert not text_column.note_digit_classes("x", dict.fromkeys(cells, 9))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("form", DIGITS)
def test_digits_that_become_categories_have_a_line_that_names_three_cells(
    tmp_path: Path, form: str, suffix: str
) -> None:
    """The line is the same in `train` and `init`, and for CSV files in `validate`."""
    cells = [DIGITS[form](value) for value in FEW]
    path = store(
        tmp_path / f"a{suffix}", {"temp": cells * 10, "z": [n * 7 % 5 for n in range(60)], "y": ["a", "b"] * 30}
    )
    data = dataset(path)
    (note,) = [note for note in data.notes if get_message("read-text-although-digits", "temp") in note]
    plain_last = sorted(
        dict.fromkeys(cell for cell in cells if any(map(str.isdigit, cell))), key=lambda cell: cell.isdigit()
    )
    assert sum(f"`{cell}`" in note for cell in cells) >= 3
    assert f"such as `{plain_last[0]}`, `{plain_last[1]}`, `{plain_last[2]}`" in note
    assert main.main(["init", str(path), "--target", "y", "--output", str(tmp_path / "i.yaml")]) == 0
    assert note in read_remarks(tmp_path / "i.yaml")
    if suffix == ".csv":
        (tmp_path / "job.yaml").write_text("name: t\ntask: tabular-classification\ndata: {train: a.csv, target: y}\n")
        assert note in data_cells.check(job_spec.load(tmp_path / "job.yaml"))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_many_different_cells_with_digits_are_refused_with_three_of_them(tmp_path: Path, suffix: str) -> None:
    path = store(tmp_path / f"a{suffix}", {"temp": [f"{v:g} mV" for v in NUMBERS], "y": ["a", "b"] * 30})
    with pytest.raises(
        DataError, check=saying("different-texts-hold-digits", 60, "`100.58 mV`, `-105.68 mV`, `512.34 mV`")
    ):
        dataset(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_classes_that_look_like_numbers_have_a_line(tmp_path: Path, suffix: str) -> None:
    path = store(
        tmp_path / f"a{suffix}", {"x": [n * 7 % 31 for n in range(120)], "y": [f"{n % 30} mV" for n in range(120)]}
    )
    note = get_message("classes-hold-digits", "y", 30)
    assert any(note in line for line in dataset(path).notes)
    assert main.main(["init", str(path), "--target", "y", "--output", str(tmp_path / "i.yaml")]) == 0
    assert note in read_remarks(tmp_path / "i.yaml")
    if suffix == ".csv":
        (tmp_path / "job.yaml").write_text("name: t\ntask: tabular-classification\ndata: {train: a.csv, target: y}\n")
        assert any(note in line for line in data_cells.check(job_spec.load(tmp_path / "job.yaml")))


def test_a_category_of_some_digits_has_no_line(tmp_path: Path) -> None:
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


def test_a_file_with_commas_and_without_the_currency_says_so(tmp_path: Path) -> None:
    data = dataset(store(tmp_path / "a.csv", {"temp": [f"{v} €" for v in NUMBERS], "y": ["a", "b"] * 30}))
    new = store(tmp_path / "b.csv", {"temp": NUMBERS, "y": ["a", "b"] * 30})
    notes = load_data.load_new([new], data.preprocessing, data.heads, labelled=True).notes
    assert says_each(notes, [get_message("temp-without-currency-read", "b.csv")])
