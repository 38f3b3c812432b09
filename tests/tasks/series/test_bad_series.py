"""Bad series: one mistake a row, with the words that a person needs to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from drivetrain.data.load_data import load
from drivetrain.errors import DataError, SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from tests.messages import saying
from tests.tasks.series.series_rows import job, make_windows, one_series, three_series, write_npz, write_rows

CLASSES, NUMBERS = "series-classification", "series-regression"
LATE = ["on"] * 40 + ["off"] * 40 + ["fault"] * 20


@pytest.mark.parametrize(
    ("task", "change", "data", "parts"),
    [
        (
            CLASSES,
            {},
            {"window": 101},
            ["data.window: is 101", "has at most 100 consecutive rows", "a shorter window"],
        ),
        (
            CLASSES,
            {},
            {"window": 30},
            ["data.window: is 30", "the validation part of", "at most 25 consecutive rows", "another data.validation"],
        ),
        (CLASSES, {"t": np.arange(100) * 60}, {"max_gap": 30}, ["data.window: is 8", "at most 1 consecutive rows"]),
        (CLASSES, {}, {"time": "tt"}, ["data.time: ", 'has no column "tt"', 'did you mean "t"?']),
        (CLASSES, {}, {"features": ["a", "c"]}, ["data.features: ", 'has no column "c"', "its columns: t, a, b, y"]),
        (CLASSES, {}, {"label": "state"}, ["data.label: ", 'has no column "state"']),
        (CLASSES, {}, {"group": "machine"}, ["data.group: ", 'has no column "machine"']),
        (
            CLASSES,
            {"t": np.arange(100) // 2},
            {},
            ["has 50 duplicate times in one series: row 1 (line 2) and row 2 (line 3) have the same t", "data.group"],
        ),
        (
            CLASSES,
            {"t": ["31 of May"] * 100},
            {},
            [
                'column "t"',
                "is string, and has no known form of times: row 1 (line 2) has `31 of May`",
                "2024-05-31 08:30",
            ],
        ),
        (
            CLASSES,
            {"t": [f"2024-01-{1 + i % 28:02} {i // 28:02}:00:00" for i in range(99)] + ["soon"]},
            {"bad_samples": 0},
            ["1 of 100 samples", "a.csv row 100 (line 101): t is `soon`, no time"],
        ),
        (CLASSES, {"t": ["x"] * 60 + [f"2024-01-01 00:00:{i:02}" for i in range(40)]}, {}, ["row 1 (line 2) has `x`"]),
        (
            CLASSES,
            {
                "t": [f"2024-10-27 0{h}:{m:02}:00" for h in (1, 2, 2) for m in range(0, 60, 2)]
                + [f"2024-10-28 00:00:{i:02}" for i in range(10)]
            },
            {},
            ["has 30 duplicate times in one series: row 31 (line 32) and row 61 (line 62)", "needs times in UTC"],
        ),
        (CLASSES, {"t": [None] * 10 + list(range(90))}, {}, ["10 of 100 samples", "a.csv row 1 (line 2): t is empty"]),
        (
            CLASSES,
            {"a": ["x"] * 100, "b": ["y"] * 100},
            {},
            ["data.features: ", "no column of numbers", "it has: a, b"],
        ),
        (
            CLASSES,
            {"a": pyarrow.array(np.ones(100), mask=np.arange(100) % 5 == 0)},
            {},
            ["20 of 100 samples", "row 1 (line 2): a is empty"],
        ),
        (
            CLASSES,
            {"a": pyarrow.nulls(100, "float64")},
            {"features": ["a"]},
            ["no row of", "has a value of every feature"],
        ),
        (
            CLASSES,
            {"a": [f"{i}?" for i in range(100)]},
            {"features": ["a"]},
            ["no row of", "has a value of every feature"],
        ),
        (CLASSES, {"y": ["on"] * 100}, {}, ["y is on in all of them", "two classes or more"]),
        (
            CLASSES,
            {"y": LATE},
            {},
            ['data.train: "fault" (6 windows) come only in the last 25% of the time', "set data.validation to another"],
        ),
        (
            CLASSES,
            {"y": np.arange(100) / 3},
            {"label": "y"},
            ["y has 23 different values in 23 rows", "use a regression"],
        ),
        (
            CLASSES,
            {"y": pyarrow.nulls(100, "string")},
            {"bad_samples": 0.99},
            ["23 of 23 samples", "window that ends in row 8 (line 9): y is empty"],
        ),
        (NUMBERS, {"y": np.full(100, 2.0)}, {}, ["y is 2 in all 23 training rows", "a number that differs"]),
        (NUMBERS, {}, {}, ["23 of 23 samples", "y is `off`, not a number"]),
    ],
)
def test_bad_tables(tmp_path: Path, task: str, change: dict[str, Any], data: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(DataError) as error:
        load(job(write_rows(tmp_path, one_series() | change), task, **data))
    message = str(error.value)
    assert not [part for part in parts if part not in message], message
    assert "\n  possible: " in message
    assert "\n  do: " in message


X, Y = make_windows()


@pytest.mark.parametrize(
    ("task", "arrays", "parts"),
    [
        (CLASSES, {"x": X}, ["has the arrays x", "save y too"]),
        (CLASSES, {"x": X, "y": Y[:30]}, ["40 windows in `x` and 30 targets in `y`"]),
        (CLASSES, {"x": X[0, 0], "y": Y}, ["`x` of", "of shape (2,)", "(N, T, channels)"]),
        (CLASSES, {"x": X.astype("U8"), "y": Y}, ["`x` of", "<U8", "reshape or convert"]),
        (CLASSES, {"x": X, "y": np.eye(4)[Y]}, ["`y` of", "shape (40, 4)", "y.argmax(axis=1)"]),
        (CLASSES, {"x": X, "y": np.zeros(40, int)}, ["y is 0 in all of them"]),
        (CLASSES, {"x": np.full_like(X, np.nan), "y": Y}, ["40 of 40 samples", "a.npz[0]: NaN or infinity"]),
        (NUMBERS, {"x": X, "y": np.array(["a"] * 40)}, ["`y` of", "<U1"]),
        (
            NUMBERS,
            {"x": X, "y": np.where(np.arange(40) < 9, np.nan, 1.0 * Y)},
            ["9 of 40 samples", "a.npz[0]: y is empty"],
        ),
    ],
)
def test_bad_arrays(tmp_path: Path, task: str, arrays: dict[str, Any], parts: list[str]) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError) as error:
        load(job(tmp_path / "a.npz", task))
    assert not [part for part in parts if part not in str(error.value)], str(error.value)


def test_arrays_of_python_objects_and_invalid_files(tmp_path: Path) -> None:
    ragged = np.empty(2, object)
    ragged[0], ragged[1] = [1.0], [1.0, 2.0]
    np.savez(tmp_path / "a.npz", x=ragged, y=[0, 1])
    with pytest.raises(DataError, match=r"it contains Python objects(?s:.*)series of different lengths need a table"):
        load(job(tmp_path / "a.npz"))
    (tmp_path / "b.npz").write_bytes(b"")
    with pytest.raises(DataError, check=saying("cannot-be-read", "b.npz")):
        load(job(tmp_path / "b.npz"))


def test_arrays_of_another_shape(tmp_path: Path) -> None:
    train, validation_path = write_npz(tmp_path, X, Y), write_npz(tmp_path, X[:, :3], Y, "own.npz")
    with pytest.raises(DataError, match=r"own.npz are 3 rows of 2 channels\n  possible: as in training: 6 rows of 2"):
        load(job(train, validation=str(validation_path)))


def test_a_separate_validation_series_needs_the_same_columns(tmp_path: Path) -> None:
    rows = three_series()
    train = write_rows(tmp_path, rows)
    del rows["b"]
    validation_path = write_rows(tmp_path, rows, "own.csv")
    with pytest.raises(DataError, match=r'data\.validation: .*own\.csv has no column "b"'):
        load(job(train, group="machine", validation=str(validation_path)))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("data: {train: a.csv, time: t, label: y}", ["data: window is missing", "add `window:`"]),
        (
            "data: {train: a.npz, window: 8, stride: 2}",
            [
                "data.window: is only for tables with one row per time step",
                "data.stride: is only for tables with one row per time step",
            ],
        ),
        (
            "data: {train: a.csv, time: t, label: y, window: 8, axes: channels-time}",
            ["data.axes: is only for arrays", "remove it"],
        ),
        ("data: {train: a.npz, axes: NCT}", ["data.axes: is 'NCT'", "auto, time-channels or channels-time"]),
        ("data: {train: a.npz, date_format: '%d'}", ["data.date_format: is only for tables with one row"]),
        ("data: {train: a.csv, time: t, label: y, window: 8, date_format: day}", ["data.date_format: is 'day'"]),
        ("data: {train: a.npz, groups: 3}", ["data.groups: is 3", "text"]),
        ("data: {train: a.npz, validation: b.csv}", ["data.validation: ", "both .npz files, or both tables"]),
        ("data: {train: a.csv, time: t, label: t, window: 8}", ["data.label: has 't', which data.time has too"]),
        (
            "data: {train: a.csv, time: t, label: [y, z], window: 8}",
            ["data.label: is several columns", "series-regression"],
        ),
        ("data: {train: a.csv, time: t, label: y, window: 8}\nmodel: {kernel: 4}", ["model.kernel: ", "an odd number"]),
        (
            "data: {train: a.csv, time: t, label: y, window: 8}\nmodel: {pool: 3}",
            ["model.pool: is 3: after pooling 2 times, 9 rows"],
        ),
        ("data: {train: a.csv, time: t, label: y, window: 8, max_gap: 0}", ["data.max_gap: "]),
    ],
)
def test_bad_specs(text: str, parts: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        job_spec.check(parse(f"name: t\ntask: series-classification\n{text}\n", "t.yaml"))
    assert not [part for part in parts if part not in str(error.value)], str(error.value)
