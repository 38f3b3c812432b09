"""Columns that number the rows or tell the target are named; the index of a data frame is no feature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.tasks import JOBS
from tests.axes import each_once
from tests.messages import begins_with, ends_with, says_only

N = 300
DRAWN = np.random.default_rng(0)
NOISE = DRAWN.normal(size=N)
CLASSES = np.repeat(list("abc"), N // 3)
ORDER = DRAWN.permutation(N)
NUMBERS = 50 * CLASSES.view(np.uint32) + DRAWN.normal(size=N)


def dataset(
    folder: Path, columns: dict[str, Any], task: str = "classification", name: str = "a.parquet", **data: object
) -> Dataset:
    table = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
    if name.endswith(".csv"):
        csv.write_csv(table, folder / name)
    else:
        parquet.write_table(table, folder / name)
    keys = {"train": str(folder / name), "target": "y", "validation": 0.2, **data}
    return load(JOBS[f"tabular-{task}"].model_validate({"name": "t", "task": f"tabular-{task}", "data": keys}))


def names(data: Dataset) -> list[str]:
    return [column["name"] for kind in ("numeric", "categorical") for column in data.preprocessing[kind]]


def list_leak_notes(data: Dataset) -> list[str]:
    return [note for note in data.notes if "number of the row" in note or "by itself" in note]


def shuffle_columns(**columns: Any) -> dict[str, Any]:
    return {name: np.asarray(values)[ORDER] for name, values in columns.items()}


@pytest.mark.parametrize(
    ("suffix", "name", "index"),
    each_once(
        [".csv", ".parquet"],
        ["__index_level_0__", "__index_level_1__", "Unnamed: 0", "Unnamed: 0.1"],
        [ORDER, ORDER * 7 + 3, np.arange(N)],
    ),
)
def test_the_index_of_pandas_is_no_feature(tmp_path: Path, suffix: str, name: str, index: Any) -> None:
    data = dataset(tmp_path, {name: index, "x": NOISE, "y": CLASSES[ORDER]}, name=f"a{suffix}")
    assert names(data) == ["x"]
    assert says_only(data.notes, "index-pandas-data-frame-feature", name, "data.numeric", "data.categorical")
    assert not list_leak_notes(data)


def test_an_index_with_a_name_is_known_by_the_metadata_of_pandas(tmp_path: Path) -> None:
    about = {
        "index_columns": ["sample", {"kind": "range", "name": None, "start": 0, "stop": N, "step": 1}],
        "columns": [],
    }
    table = pyarrow.table({"x": NOISE, "y": CLASSES[ORDER], "sample": ORDER}).replace_schema_metadata(
        {"pandas": json.dumps(about)}
    )
    assert names(dataset(tmp_path, table)) == ["x"]
    with_sample = dataset(tmp_path, table, numeric=["sample"])
    assert names(with_sample) == ["x", "sample"]
    assert len(list_leak_notes(with_sample)) == 1


@pytest.mark.parametrize(
    "about",
    [b"{", b"[]", b'{"index_columns": 3}', b'{"index_columns": [3, null]}'],
    ids=["cut off", "a list", "a number", "no names"],
)
def test_damaged_metadata_names_no_index(tmp_path: Path, about: bytes) -> None:
    table = pyarrow.table({"x": NOISE, "y": CLASSES}).replace_schema_metadata({b"pandas": about})
    assert names(dataset(tmp_path, table)) == ["x"]


def test_an_index_that_the_job_names_is_a_feature(tmp_path: Path) -> None:
    columns = {"Unnamed: 0": ORDER, "x": NOISE, "y": CLASSES[ORDER]}
    assert names(dataset(tmp_path, columns, features=["x", "Unnamed: 0"])) == ["Unnamed: 0", "x"]


@pytest.mark.parametrize("kind", ["int64", "float64", "uint16"])
@pytest.mark.parametrize("start", [0, 1, 1000])
def test_numbers_of_rows_are_named_with_what_they_explain(tmp_path: Path, kind: str, start: int) -> None:
    columns = shuffle_columns(id=(np.arange(N) + start).astype(kind), x=NOISE, y=CLASSES)
    (note,) = list_leak_notes(dataset(tmp_path, columns))
    assert begins_with(note, "number-row-alone-gives", "id", start, start + N - 1)
    assert ends_with(note, "rows-most-frequent-class", 33, "data.ignore")


def test_numbers_of_rows_that_explain_nothing_are_named_too(tmp_path: Path) -> None:
    (note,) = list_leak_notes(dataset(tmp_path, {"id": ORDER, "x": NOISE, "y": CLASSES}))
    share = int(note.split("alone it gives ")[1].split("%")[0])
    assert share < 50


def test_numbers_of_some_rows(tmp_path: Path) -> None:
    """Those that are left of a table after others were filtered away."""
    left_over = np.sort(DRAWN.choice(int(1.7 * N), N, replace=False))
    (note,) = list_leak_notes(dataset(tmp_path, shuffle_columns(id=left_over, x=NOISE, y=CLASSES)))
    assert begins_with(note, "is-number-of-row", "id")


def test_numbers_in_the_order_of_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'column "id" of .* is a row number'):
        dataset(tmp_path, {"id": np.arange(N), "x": NOISE, "y": CLASSES})


TELLING = {
    "a code of the class": ("classification", CLASSES.view(np.uint32) % 7, CLASSES),
    "another word for the class": ("classification", np.char.add("class ", CLASSES), CLASSES),
    "a number apart for each class": ("classification", NUMBERS, CLASSES),
    "the target in another unit": ("regression", NUMBERS * 1.8 + 32, NUMBERS),
    "the target without its noise": ("regression", NUMBERS + NOISE / 10, NUMBERS),
}


@pytest.mark.parametrize("case", TELLING)
def test_a_column_that_tells_the_target_is_named(tmp_path: Path, case: str) -> None:
    task, leak, y = TELLING[case]
    (note,) = list_leak_notes(dataset(tmp_path, shuffle_columns(x=NOISE, leak=leak, y=y), task))
    assert begins_with(note, "tells-itself-alone", "leak")
    assert ends_with(note, "known-leak-leaves", "data.ignore")


HONEST = {
    "noise": ("classification", NOISE * 2, CLASSES),
    "a helpful number": ("classification", NUMBERS + 60 * NOISE, CLASSES),
    "a helpful category": ("classification", np.where(NOISE > 1, "other", CLASSES), CLASSES),
    "a noisy measurement": ("regression", NUMBERS + 30 * NOISE, NUMBERS),
    "counts": ("classification", DRAWN.poisson(N, N), CLASSES),
    "a category for few rows": ("classification", [f"k{i // 3}" for i in ORDER], CLASSES),
    "mostly one class": ("classification", NOISE * 2, np.where(np.arange(N) < 4, "bad", "ok")),
}


@pytest.mark.parametrize("case", HONEST)
def test_columns_that_tell_only_a_part_are_not(tmp_path: Path, case: str) -> None:
    task, column, y = HONEST[case]
    assert not list_leak_notes(dataset(tmp_path, shuffle_columns(x=NOISE, other=column, y=y), task))


def test_gaps_and_labels(tmp_path: Path) -> None:
    leak = pyarrow.array(np.arange(N) % 2, mask=np.arange(N) % 10 == 3)
    columns = {"leak": leak, "x": NOISE, "a": np.arange(N) % 2, "b": (NOISE > 0).astype(int)}
    assert not list_leak_notes(dataset(tmp_path, columns, target=["a", "b"]))
    both = np.arange(N) % 4
    (note,) = list_leak_notes(dataset(tmp_path, columns | {"leak": both, "b": both // 2 ^ both % 2}, target=["a", "b"]))
    assert begins_with(note, "tells-itself-alone-explains", "leak", "100.0")


def test_few_rows_prove_nothing(tmp_path: Path) -> None:
    assert not list_leak_notes(dataset(tmp_path, {"x": [3, 1, 2, 0, 4, 5], "z": [2.0, 1.5] * 3, "y": ["a", "b"] * 3}))


def test_many_telling_columns_are_counted(tmp_path: Path) -> None:
    columns = {f"c{i}": CLASSES.view(np.uint32) * (i + 1) for i in range(12)}
    notes = dataset(tmp_path, shuffle_columns(**columns, y=CLASSES)).notes
    assert len([note for note in notes if "by itself" in note]) == 5
    assert says_only(notes, "columns-tell-themselves", 7)
