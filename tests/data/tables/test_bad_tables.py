"""Bad tables: one mistake a row, with the words that a person needs to fix it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.data.load_data import load
from drivetrain.errors import DataError, SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from tests.data.tables.table_rows import job, write_rows
from tests.messages import saying

N = 60
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=3 * i) for i in range(N)]
GOOD: dict[str, Any] = {
    "age": np.linspace(20, 60, N) ** 1.5,
    "kind": ["a", "b", "c"] * (N // 3),
    "y": ["no", "yes"] * (N // 2),
}


def text(*cells: str) -> list[str]:
    """Numbers as text, with these cells at the end."""
    return [f"{i}.5" for i in range(N - len(cells))] + list(cells)


CLASSES, NUMBERS = "tabular-classification", "tabular-regression"


@pytest.mark.parametrize(
    ("task", "change", "data", "parts"),
    [
        (
            CLASSES,
            {},
            {"target": "yy"},
            ["data.target: ", 'has no column "yy"', "its columns: age, kind, y", 'did you mean "y"?'],
        ),
        (CLASSES, {}, {"features": ["age", "kin"]}, ["data.features: ", 'no column "kin"', 'did you mean "kind"?']),
        (CLASSES, {}, {"ignore": ["id"]}, ["data.ignore: ", 'no column "id"']),
        (CLASSES, {"y": ["no"] * N}, {}, ["60 rows, and y is no in all of them", "two classes or more"]),
        (CLASSES, {"y": np.arange(N) * 1.5}, {}, ["data.target: ", "has fractions such as 1.5", "use a regression"]),
        (
            CLASSES,
            {"y": [f"name {i}" for i in range(N)]},
            {},
            ["y has 60 different values in 60 rows", "use a regression"],
        ),
        (
            CLASSES,
            {"y": [None] * 30 + ["a", "b"] * 15},
            {},
            ["30 of 60 samples cannot be used", "a.parquet row 1: y is empty", "and 10 more", "a share of 0.05"],
        ),
        (
            CLASSES,
            {"when": DAYS},
            {},
            [
                'column "when"',
                "is a date (date32[day])",
                "add when to data.ignore",
                "data.dates: {when: [year, month, weekday]}",
            ],
        ),
        (
            CLASSES,
            {"id": [f"M{i:04}" for i in range(N)]},
            {},
            ['column "id"', "60 different texts in 60 rows", "add id to data.ignore"],
        ),
        (
            CLASSES,
            {"row": np.arange(N)},
            {},
            ['column "row"', "is a row number", "add row to data.ignore, or to data.numeric"],
        ),
        (
            CLASSES,
            {"price": text("zwölf")},
            {},
            ["are numbers but 1: row 60 has `zwölf`", "data.numeric", "data.categorical"],
        ),
        (CLASSES, {"price": text()}, {}, ["are numbers written as text", "add price to data.numeric"]),
        (
            CLASSES,
            {"price": text(*["x"] * 9)},
            {"numeric": ["price"]},
            ["9 of 60 samples", "row 52: price is `x`, not a number"],
        ),
        (
            CLASSES,
            {"tags": [["a"]] * N},
            {},
            ['column "tags"', "is list<element: string>", "numbers, text, true or false"],
        ),
        (CLASSES, {"y": [["a"]] * N}, {}, ["data.target: ", 'column "y"', "is list<element: string>"]),
        (CLASSES, {"age": [np.inf] * N}, {}, ["60 of 60 samples", "row 1: age is infinite"]),
        (
            CLASSES,
            {"age": np.ones(N), "kind": ["a"] * N},
            {},
            ["all 2 features", "are constant in the training rows"],
        ),
        (CLASSES, {"age": None, "kind": None}, {}, ["has no columns to predict from"]),
        (CLASSES, {"b": [0, 2] * 30}, {"target": ["y", "b"]}, ["row 1: y is `no`, not 0 or 1"]),
        (CLASSES, {"y": [1] * N, "b": [0, 1] * 30}, {"target": ["y", "b"]}, ["y is 1 in all", "a label that differs"]),
        (
            NUMBERS,
            {"y": np.full(N, 3.5)},
            {},
            ["y is 3.5 in all 45 training rows", "a number that differs between rows"],
        ),
        (NUMBERS, {}, {}, ["60 of 60 samples", "row 1: y is `no`, not a number"]),
        (NUMBERS, {"y": [np.inf] * 10 + [1.0, 2.0] * 25}, {}, ["10 of 60 samples", "row 1: y is infinite"]),
        (NUMBERS, {"y": DAYS}, {}, ["data.target: ", 'column "y"', "is date32[day]"]),
    ],
)
def test_bad_tables(tmp_path: Path, task: str, change: dict[str, Any], data: dict[str, Any], parts: list[str]) -> None:
    rows = {name: cells for name, cells in (GOOD | change).items() if cells is not None}
    with pytest.raises(DataError) as error:
        load(job(write_rows(tmp_path, rows), task, **data))
    message = str(error.value)
    assert not [part for part in parts if part not in message], message
    assert message.count("\n  possible: ") == message.count("\n  do: ") == 1


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            {"y": ["no", "maybe"] * (N // 2)},
            ["data.validation: classes that are not in the training data", '"maybe" (30)'],
        ),
        ({"age": None}, ["data.validation: ", 'no column "age"', "its columns: kind, y"]),
        ({"age": ["x"] * N}, ["data.validation: 60 of 60 samples", "row 1: age is `x`, not a number"]),
        ({"age": DAYS}, ["data.validation: ", 'column "age"', "is date32[day]"]),
    ],
)
def test_bad_validation_files(tmp_path: Path, change: dict[str, Any], parts: list[str]) -> None:
    validation_columns = {name: cells for name, cells in (GOOD | change).items() if cells is not None}
    parquet.write_table(pyarrow.table(validation_columns), tmp_path / "own.parquet")
    with pytest.raises(DataError) as error:
        load(job(write_rows(tmp_path, GOOD), validation=str(tmp_path / "own.parquet")))
    assert not [part for part in parts if part not in str(error.value)], str(error.value)


def test_dates_and_codes_can_be_categories(tmp_path: Path) -> None:
    rows = GOOD | {"when": [DAYS[i % 3] for i in range(N)], "code": np.arange(N) % 4}
    data = load(job(write_rows(tmp_path, rows), categorical=["when", "code"]))
    values = {c["name"]: c["values"] for c in data.preprocessing["categorical"]}
    assert values["when"] == ["2024-01-01", "2024-01-04", "2024-01-07"]
    assert values["code"] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("data: {train: a.csv}", ["data.target: is missing"]),
        ("data: {train: a.csv, target: [y, y]}", ["data.target: ", "y appears twice"]),
        ("data: {train: a.csv, target: y, features: [a, y]}", ["data.features: has 'y', which data.target has too"]),
        (
            "data: {train: a.csv, target: y, numeric: a, categorical: [a]}",
            ["data.categorical: has 'a', which data.numeric has too"],
        ),
        (
            "data: {train: a.csv, target: y, features: a, numeric: b}",
            ["data.numeric: has 'b', which data.features does not have"],
        ),
        ("data: {train: a.csv, target: [a, b]}\ntrain: {loss: focal}", ["train.loss: ", "bce"]),
        (
            "data: {train: a.csv, target: [a, b]}\ntrain: {class_weights: {a: 0}}",
            ["train.class_weights: is a mapping", "numbers above 0 by class name"],
        ),
        ("data: {train: a.csv, target: y}\nmodel: {hidden: []}", ["model.hidden: "]),
        ("data: {train: a.csv, target: y}\nmodel: {name: linear, skip: true}", ["model.skip: "]),
    ],
)
def test_bad_specs(text: str, parts: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        job_spec.check(parse(f"name: t\ntask: tabular-classification\n{text}\n", "t.yaml"))
    assert not [part for part in parts if part not in str(error.value)], str(error.value)
    assert "t.yaml:" in str(error.value)


def test_numbers_too_close_to_be_scaled(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i * i},{i}e-300\n" for i in range(20)))

    with pytest.raises(DataError, check=saying("numbers-too-close")):
        load(job(tmp_path / "a.csv", "tabular-regression"))
