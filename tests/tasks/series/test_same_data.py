"""The same series in another form: the model sees the same windows, and `predict` sees what `evaluate` sees."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import ipc, parquet

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from tests.axes import each_once
from tests.tasks.series.series_rows import Rows, gather_windows, job

START = datetime(2024, 5, 1)
COUNT = 120
ROLES: dict[str, Any] = {"features": ["a", "b"], "group": "machine", "window": 6, "stride": 2}
Write = Callable[[Path, Rows], Path]


def content() -> Rows:
    """Two machines with a whole number, a number with a fraction and a gap, and a class, in the order of time."""
    steps = np.arange(COUNT) // 2
    return {
        "t": [START + timedelta(minutes=int(step)) for step in steps],
        "machine": [f"m{i % 2}" for i in range(COUNT)],
        "a": [int(value) for value in np.random.default_rng(0).integers(-50, 2000, COUNT)],
        "b": [None if i in (7, 40) else float(i % 13) - 6.25 for i in range(COUNT)],
        "y": [["marcha", "parón"][step // 7 % 2] for step in steps.tolist()],
    }


def make_csv_writer(
    sign: str, encoding: str = "utf-8", point: str = ".", empty: str = "", clock: str = "%Y-%m-%d %H:%M:%S"
) -> Write:
    def cell(value: object) -> str:
        if isinstance(value, datetime):
            return value.strftime(clock)
        return empty if value is None else str(value).replace(".", point) if isinstance(value, float) else str(value)

    def write(folder: Path, rows: Rows) -> Path:
        with (folder / "a.csv").open("w", encoding=encoding, newline="") as file:
            lines = [[cell(value) for value in row] for row in zip(*rows.values(), strict=True)]
            csv.writer(file, delimiter=sign).writerows([list(rows), *lines])
        return folder / "a.csv"

    return write


def json_lines(folder: Path, rows: Rows) -> Path:
    lines = [json.dumps(dict(zip(rows, row, strict=True)), default=str) for row in zip(*rows.values(), strict=True)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl"


def table(
    unit: str = "us", zone: str | None = None, number: Any = None, text: Any = None, suffix: str = "parquet"
) -> Write:
    def write(folder: Path, rows: Rows) -> Path:
        times = [time.replace(tzinfo=UTC) if zone else time for time in rows["t"]]
        columns = {
            name: pyarrow.array(cells, number if name == "b" else text if name in ("machine", "y") else None)
            for name, cells in rows.items()
            if name != "t"
        }
        arrow_table = pyarrow.table({"t": pyarrow.array(times, pyarrow.timestamp(unit, zone)), **columns})
        path = folder / f"a.{suffix}"
        if suffix == "parquet":
            parquet.write_table(arrow_table, path)
        else:
            with ipc.new_file(path, arrow_table.schema) as file:
                file.write_table(arrow_table)
        return path

    return write


LARGE = pyarrow.large_string()
FORMS: dict[str, Write] = {
    "comma": make_csv_writer(","),
    "semicolon with a mark": make_csv_writer(";", "utf-8-sig", empty="NaN"),
    "tab utf-16": make_csv_writer("\t", "utf-16", empty="None"),
    "comma windows-1252": make_csv_writer(",", "windows-1252", empty="N/A"),
    "decimal commas": make_csv_writer(";", point=","),
    "decimal commas quoted": make_csv_writer(",", point=","),
    "clock T": make_csv_writer(",", clock="%Y-%m-%dT%H:%M:%S"),
    "clock UTC": make_csv_writer(",", clock="%Y-%m-%dT%H:%M:%SZ"),
    "clock offset": make_csv_writer(",", clock="%Y-%m-%d %H:%M:%S+02:00"),
    "clock minutes": make_csv_writer(",", clock="%Y-%m-%d %H:%M"),
    "json lines": json_lines,
    "arrow": table(suffix="arrow"),
    "parquet s": table("s"),
    "parquet ms UTC": table("ms", "UTC"),
    "parquet us Madrid": table("us", "Europe/Madrid"),
    "parquet ns": table("ns"),
    "parquet float32": table(number=pyarrow.float32()),
    "parquet large": table(text=LARGE),
    "parquet views": table(text=pyarrow.string_view()),
    "parquet dictionary": table(text=pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
    "parquet large dictionary": table(text=pyarrow.dictionary(pyarrow.int32(), LARGE)),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load(job(make_csv_writer(",")(tmp_path_factory.mktemp("base"), content()), **ROLES))


def check_same(base: Dataset, path: Path, **data: Any) -> None:
    """The model and all windows are the same; new windows of the file are, with labels and without."""
    other = load(job(path, **{**ROLES, **data}))
    form_keys = ("csv", "date_format", "axes")
    one, two = ({k: v for k, v in dataset.preprocessing.items() if k not in form_keys} for dataset in (base, other))
    assert one == two
    assert base.heads == other.heads
    for first, second in ((base.train, other.train), (base.validation, other.validation)):
        np.testing.assert_array_equal(gather_windows(first), gather_windows(second))
        assert torch.equal(first.targets[""], second.targets[""])
    stored = base.preprocessing | {key: other.preprocessing[key] for key in form_keys if key in other.preprocessing}
    labelled, plain = (load_data.load_new([path], stored, base.heads, labelled=flag).split for flag in (True, False))
    np.testing.assert_array_equal(gather_windows(labelled), gather_windows(plain))
    assert len(labelled) >= len(base.train) + len(base.validation)


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_file_changes_nothing(base: Dataset, tmp_path: Path, form: str) -> None:
    check_same(base, FORMS[form](tmp_path, content()))


@pytest.mark.parametrize("clock", ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%Y%m%d %H%M%S"])
def test_the_form_of_times_changes_nothing(base: Dataset, tmp_path: Path, clock: str) -> None:
    check_same(base, make_csv_writer(",", clock=clock)(tmp_path, content()), date_format=clock)


def shuffle_rows(rows: Rows) -> Rows:
    order = np.random.default_rng(1).permutation(COUNT).tolist()
    return {name: [cells[i] for i in order] for name, cells in rows.items()}


CHANGES: dict[str, Callable[[Rows], Rows]] = {
    "rows": shuffle_rows,
    "columns": lambda rows: dict(reversed(rows.items())),
    "index": lambda rows: {"__index_level_0__": list(range(COUNT)), **rows},
}


@pytest.mark.parametrize(("change", "form"), each_once(CHANGES, ["comma", "parquet large"]))
def test_the_order_of_rows_and_columns_changes_nothing(base: Dataset, tmp_path: Path, form: str, change: str) -> None:
    check_same(base, FORMS[form](tmp_path, CHANGES[change](content())))


def arrays() -> Rows:
    """Windows of small whole numbers, which every type can hold."""
    generator = np.random.default_rng(0)
    return {"x": generator.integers(0, 100, (40, 12, 3)).astype(np.float64), "y": np.arange(40) % 2}


ARRAYS: dict[str, Callable[[Rows], Rows]] = {
    **{
        f"x {kind}": (lambda rows, kind=kind: rows | {"x": rows["x"].astype(kind)})  # type: ignore[misc]
        for kind in ("f2", "f4", ">f8", "i1", "u1", "i2", "i4", "i8", "u8")
    },
    **{
        f"y {kind}": (lambda rows, kind=kind: rows | {"y": rows["y"].astype(kind)})  # type: ignore[misc]
        for kind in ("i1", "u1", "f4", "f8", "U1", "S1")
    },
    "y column": lambda rows: rows | {"y": rows["y"][:, None]},
    "fortran": lambda rows: rows | {"x": np.asfortranarray(rows["x"])},
    "channels first": lambda rows: rows | {"x": rows["x"].transpose(0, 2, 1)},
    "more arrays": lambda rows: {"names": np.array(["a"]), **rows},
    "compressed": lambda rows: rows,
}


@pytest.mark.parametrize("form", ARRAYS)
def test_the_form_of_arrays_changes_nothing(tmp_path: Path, form: str) -> None:
    np.savez(tmp_path / "base.npz", **arrays())
    save: Callable[..., None] = np.savez_compressed if form == "compressed" else np.savez
    save(tmp_path / "a.npz", **ARRAYS[form](arrays()))
    base, axes = load(job(tmp_path / "base.npz")), "channels-time" if form == "channels first" else "auto"
    other = load(job(tmp_path / "a.npz", axes=axes))
    assert {key: value for key, value in other.preprocessing.items() if key != "axes"} == base.preprocessing
    assert other.heads == base.heads
    np.testing.assert_array_equal(gather_windows(base.train), gather_windows(other.train))
    assert torch.equal(base.train.targets[""], other.train.targets[""])
    for flag in (True, False):
        new = load_data.load_new([tmp_path / "a.npz"], other.preprocessing, base.heads, labelled=flag).split
        np.testing.assert_array_equal(gather_windows(new)[np.asarray(base.train.numbers)], gather_windows(base.train))  # type: ignore
