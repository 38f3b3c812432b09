"""The same texts in another form: the model sees the same, and `predict` sees what `evaluate` sees."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable
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
from tests import reports
from tests.axes import each_once

Row = list[str]
Write = Callable[[Path, list[str], list[Row]], Path]
HEADER = ["descripcion", "modo", "causa"]
LABELS = "[modo, causa]"


def content() -> list[Row]:
    """Spanish reports with labels; one text has a line break, separators and quotes."""
    rows = [
        [f"La válvula número {i} gotea; señal {i % 7}", ["fuga", "vibración"][i % 2], ["a", "b", "c"][i % 3]]
        for i in range(60)
    ]
    rows[5][0] = 'El técnico dijo: "otra vez"\nmañana, quizás'
    return rows


def delimited_writer(
    sign: str, encoding: str = "utf-8", end: str = "\n", suffix: str = "csv", quoting: int = 0
) -> Write:
    def write(folder: Path, header: list[str], rows: list[Row]) -> Path:
        path = folder / f"a.{suffix}"
        with path.open("w", encoding=encoding, newline="") as file:
            csv.writer(file, delimiter=sign, lineterminator=end, quoting=quoting).writerows([header, *rows])  # type: ignore[arg-type]
        return path

    return write


def json_lines(*, ascii_only: bool, end: str = "\n", mark: bytes = b"") -> Write:
    def write(folder: Path, header: list[str], rows: list[Row]) -> Path:
        lines = [json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=ascii_only) + end for row in rows]
        (folder / "a.jsonl").write_bytes(mark + "".join(lines).encode())
        return folder / "a.jsonl"

    return write


def table(kind: Any, *, dictionary: bool = False, suffix: str = "parquet") -> Write:
    def write(folder: Path, header: list[str], rows: list[Row]) -> Path:
        columns = {}
        for name, cells in zip(header, zip(*rows, strict=True), strict=True):
            column = pyarrow.array([cell or None for cell in cells], pyarrow.string()).cast(kind)
            columns[name] = column.dictionary_encode() if dictionary else column
        arrow_table, path = pyarrow.table(columns), folder / f"a.{suffix}"
        if suffix == "parquet":
            parquet.write_table(arrow_table, path)
        else:
            with ipc.new_stream(path, arrow_table.schema) as file:
                file.write_table(arrow_table)
        return path

    return write


FORMS: dict[str, Write] = {
    "comma": delimited_writer(","),
    "semicolon windows-1252 crlf": delimited_writer(";", "windows-1252", "\r\n"),
    "tab utf-16 crlf": delimited_writer("\t", "utf-16", "\r\n"),
    "pipe with a mark": delimited_writer("|", "utf-8-sig"),
    "tsv": delimited_writer("\t", suffix="tsv"),
    "all quoted": delimited_writer(",", quoting=csv.QUOTE_ALL),
    "json lines": json_lines(ascii_only=False),
    "json lines in ascii": json_lines(ascii_only=True),
    "json lines crlf": json_lines(ascii_only=False, end="\r\n"),
    "json lines with a mark": json_lines(ascii_only=False, mark=b"\xef\xbb\xbf"),
    "parquet": table(pyarrow.string()),
    "parquet large": table(pyarrow.large_string()),
    "parquet views": table(pyarrow.string_view()),
    "parquet dictionary": table(pyarrow.string(), dictionary=True),
    "parquet large dictionary": table(pyarrow.large_string(), dictionary=True),
    "arrow": table(pyarrow.string(), suffix="arrow"),
    "arrow large": table(pyarrow.large_string(), suffix="arrow"),
}


def load_texts(folder: Path, path: Path) -> Dataset:
    """The data of a job whose validation is always the same file, so that the training texts are, too."""
    (folder / "held").mkdir()
    delimited_writer(",")(folder / "held", HEADER, content()[::6])
    return load(reports.job(folder, train=path.name, labels=LABELS, data=", validation: held/a.csv"))


def same_model(one: Dataset, two: Dataset) -> None:
    stored = [{key: value for key, value in data.preprocessing.items() if key != "csv"} for data in (one, two)]
    assert stored[0] == stored[1]
    assert one.heads == two.heads


def check_read(path: Path, base: Dataset, order: list[int]) -> None:
    """New data gives the tokens and labels of the base, with labels and without."""
    positions = np.arange(len(order))
    train_rows = [int(row) for row in base.train.rows]  # type: ignore[attr-defined]
    assert train_rows == list(range(len(order)))
    labelled, plain = (
        load_data.load_new([path], base.preprocessing, base.heads, labelled=flag) for flag in (True, False)
    )
    rows = np.array(order)
    for part in (labelled, plain):
        assert len(part.split) == len(order)
        for tensor, expected in zip(part.split.gather(positions), base.train.gather(rows), strict=True):
            assert torch.equal(tensor, expected)
    for name in base.heads:
        assert torch.equal(labelled.split.targets[name], base.train.targets[name][torch.from_numpy(rows)])


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_file_changes_nothing(tmp_path: Path, form: str) -> None:
    (tmp_path / "base").mkdir()
    rows = content()
    base = load_texts(tmp_path / "base", delimited_writer(",")(tmp_path / "base", HEADER, rows))
    path = FORMS[form](tmp_path, HEADER, rows)
    same_model(base, load_texts(tmp_path, path))
    check_read(path, base, list(range(len(rows))))


def other_columns(rows: list[Row]) -> tuple[list[str], list[Row]]:
    return HEADER[::-1], [row[::-1] for row in rows]


def index_column(rows: list[Row]) -> tuple[list[str], list[Row]]:
    return ["__index_level_0__", *HEADER], [[str(i), *row] for i, row in enumerate(rows)]


def spaces(rows: list[Row]) -> tuple[list[str], list[Row]]:
    return HEADER, [[row[0], f" {row[1]} ", row[2]] for row in rows]


def decompose_text(rows: list[Row]) -> tuple[list[str], list[Row]]:
    return HEADER, [[unicodedata.normalize("NFD", row[0]), *row[1:]] for row in rows]


CHANGES = {"columns": other_columns, "index": index_column, "spaces": spaces, "NFD": decompose_text}


@pytest.mark.parametrize(("change", "form"), each_once(CHANGES, ["comma", "json lines", "parquet large"]))
def test_the_order_and_the_spelling_of_cells_change_nothing(tmp_path: Path, form: str, change: str) -> None:
    (tmp_path / "base").mkdir()
    rows = content()
    base = load_texts(tmp_path / "base", delimited_writer(",")(tmp_path / "base", HEADER, rows))
    path = FORMS[form](tmp_path, *CHANGES[change](rows))
    same_model(base, load_texts(tmp_path, path))
    check_read(path, base, list(range(len(rows))))


@pytest.mark.parametrize("form", ["comma", "semicolon windows-1252 crlf", "json lines", "parquet views"])
def test_the_order_of_rows_changes_nothing_but_their_order(tmp_path: Path, form: str) -> None:
    (tmp_path / "base").mkdir()
    rows = content()
    base = load_texts(tmp_path / "base", delimited_writer(",")(tmp_path / "base", HEADER, rows))
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    path = FORMS[form](tmp_path, HEADER, [rows[i] for i in order])
    same_model(base, load_texts(tmp_path, path))
    check_read(path, base, order)


@pytest.mark.parametrize("form", ["comma", "tab utf-16 crlf", "json lines", "parquet", "parquet large"])
def test_missing_labels_are_the_same_everywhere(tmp_path: Path, form: str) -> None:
    (tmp_path / "base").mkdir()
    rows = content()
    for i in range(0, 60, 9):
        rows[i][1 + i % 2] = ""
    base = load_texts(tmp_path / "base", delimited_writer(",")(tmp_path / "base", HEADER, rows))
    path = FORMS[form](tmp_path, HEADER, rows)
    same_model(base, load_texts(tmp_path, path))
    check_read(path, base, list(range(len(rows))))
