"""Whole numbers with leading zeros are labels in features and targets, and numbers in equal steps number the rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.cli import main
from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.data.tables.column_roles import MIN_NUMBERED_ROWS
from drivetrain.errors import DataError
from drivetrain.job.tables import TableJob
from drivetrain.job_spec import data_cells, load_job
from tests.axes import each_once
from tests.cli.drafted_jobs import draft_job
from tests.messages import saying, says

CODES = ["02139", "90210", "01002", "60601"]


def write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    with path.open("w", newline="", encoding="utf-16" if path.stem.startswith("utf16") else "utf-8") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])


def write_lines(path: Path, columns: Mapping[str, Any]) -> None:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


WRITERS: dict[str, Callable[[Path, Mapping[str, Any]], None]] = {
    "t.csv": write_csv,
    "utf16.csv": write_csv,
    "t.jsonl": write_lines,
    "t.parquet": lambda path, columns: parquet.write_table(pyarrow.table(dict(columns)), path),
}


def make_job(path: Path, target: str = "y", task: str = "classification", keys: str = "") -> TableJob:
    spec = path.parent / "job.yaml"
    spec.write_text(
        f"name: t\ntask: tabular-{task}\ndata: {{train: {path.name}, target: '{target}'{keys}}}\nmodel: {{name: mlp}}\n"
    )
    job = load_job.load(spec)
    assert isinstance(job, TableJob)
    return job


@pytest.mark.parametrize("step", [7, 631])
def test_validate_refuses_codes_that_mostly_differ_as_training_does(tmp_path: Path, step: int) -> None:
    """Also if few of them have a leading zero."""
    codes = [f"{i * step % 99_991:05}" for i in range(1, 161)]
    write_csv(tmp_path / "t.csv", {"code": codes, "y": [i % 2 for i in range(160)]})
    job = make_job(tmp_path / "t.csv")
    for read in (load, data_cells.check):
        with pytest.raises(DataError, check=saying("different-texts-hold-digits", 160, "")):
            read(job)


@pytest.mark.parametrize(("name", "marks"), each_once(WRITERS, [[], ["-", "NA"]]))
def test_leading_zeros_are_kept(tmp_path: Path, name: str, marks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [*marks, *(CODES * 30)][:120]
    columns = {"code": codes, "size": [i * 7 % 40 / 4 for i in range(120)], "y": [CODES[i % 4] for i in range(120)]}
    path = tmp_path / name
    WRITERS[name](path, columns)
    data = load(make_job(path))
    assert data.heads[""].classes == tuple(sorted(CODES, key=int))
    (category,) = data.preprocessing["categorical"]
    assert [value for value in category["values"] if value not in marks] == sorted(CODES)
    assert says(data.notes, "leading-zero-is-category", "code", "02139")
    # New rows have the same labels, also where none of them has a zero.
    for rows in (columns, {key: [cells[-1]] * 8 for key, cells in columns.items()}):
        WRITERS[name](tmp_path / f"new{path.suffix}", rows)
        new = load_data.load_new([tmp_path / f"new{path.suffix}"], data.preprocessing, data.heads, labelled=False)
        assert not any("the training data" in note for note in new.notes)
    # `init` and `validate` agree.
    monkeypatch.chdir(tmp_path)
    drafted = draft_job(name, "--target", "y")
    assert isinstance(drafted, TableJob)
    assert drafted.task == "tabular-classification"
    assert "code" not in (drafted.data.numeric or ())
    assert main.main(["validate", "job.yaml"]) == 0


def test_the_job_can_make_numbers_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_csv(path, {"code": CODES * 30, "y": [f"{i % 9:03}" for i in range(120)]})
    data = load(make_job(path, task="regression", keys=", numeric: [code]"))
    assert [column["name"] for column in data.preprocessing["numeric"]] == ["code"]
    assert data.heads[""].mean == pytest.approx([3.97], abs=0.3)


def test_numbered_labels_are_identifiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    write_csv(path, {"code": [f"{i:05}" for i in range(200)], "z": [i % 7 for i in range(200)], "y": ["a", "b"] * 100})
    with pytest.raises(DataError, match=r'column "code" of .* has 200 different texts'):
        load(make_job(path))
    assert main.main(["validate", str(tmp_path / "job.yaml")]) == 3
    assert "has 200 different texts in 200 rows" in capsys.readouterr().err


@pytest.mark.parametrize("step", [1, 2, 10, -1, -5])
def test_equal_steps_number_the_rows(tmp_path: Path, step: int) -> None:
    path = tmp_path / "t.csv"
    numbers = [100 + step * i for i in range(MIN_NUMBERED_ROWS * 4)]
    other_columns = {"z": [i * i % 7 for i in range(len(numbers))], "y": [str(i * i % 5) for i in range(len(numbers))]}
    write_csv(path, {"row": numbers, **other_columns})
    with pytest.raises(DataError, match=r'column "row" of .* is a row number'):
        load(make_job(path))
    # In another order, a note names it.
    write_csv(path, {"row": numbers[1::2] + numbers[::2], **other_columns})
    assert any('"row" is a number' in note for note in load(make_job(path)).notes)


def test_few_numbers_at_equal_distances_are_a_measurement(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_csv(path, {"dose": [10 * i for i in range(8)], "y": ["a", "b"] * 4})
    assert [column["name"] for column in load(make_job(path)).preprocessing["numeric"]] == ["dose"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_no_advice_leaves_out_every_row(tmp_path: Path, name: str) -> None:
    """Decimal commas, which only CSV files show."""
    WRITERS[name](tmp_path / name, {"z": [i * i % 7 for i in range(40)], "y": [f"{i},5" for i in range(40)]})
    with pytest.raises(DataError) as caught:
        load(make_job(tmp_path / name, task="regression"))
    assert "`0,5`, not a number" in caught.value.given
    assert "bad_samples" not in caught.value.action
    assert says(caught.value.action, "repair-most-samples")
