"""Predictions beside the columns of their table: every cell and the form of the file stay."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drivetrain.data.formats import table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.errors import SpecError
from drivetrain.inference import annotated_table, predict

HEADER = ["día", "peso", "nota"]
ROWS = [["001", "1,50", "bien; casi\r\nperfecto"], ["002", "-2,25", '"sí"'], ["003", "", "=A1"], ["004", "7,00", "fin"]]
PREDICTIONS = [{"prediction": "añejo", "probability": 0.75}, {"prediction": "new", "probability": 1.0}]


def annotate(path: Path, numbers: tuple[int, ...] = (1, 4)) -> bytes:
    files = CsvFiles()
    table_file.read(path, "data", csv=files)
    table = annotated_table.open_table(path, files)
    text = io.StringIO(newline="")
    cells = [{name: table.form.format(value) for name, value in row.items()} for row in PREDICTIONS[: len(numbers)]]
    annotated_table.write(table, numbers, cells, text)
    return text.getvalue().encode(table.form.encoding)


def write_table(path: Path, encoding: str, sign: str = ";", end: str = "\r\n", above: str = "") -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        file.write(above)
        writer = csv.writer(file, delimiter=sign, lineterminator=end)
        writer.writerow(HEADER)
        writer.writerows(ROWS[:2])
        file.write(end)  # an empty line, which is no row
        writer.writerows(ROWS[2:])
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "windows-1252", "utf-16"])
@pytest.mark.parametrize(("sign", "end"), [(";", "\r\n"), ("\t", "\n")])
def test_the_form_of_the_file_stays(tmp_path: Path, encoding: str, sign: str, end: str) -> None:
    path = write_table(tmp_path / "a.csv", encoding, sign, end)
    content = annotate(path)
    assert content[:2] == path.read_bytes()[:2], "the byte order mark"
    text = content.decode(encoding)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=sign))
    assert rows[0] == [*HEADER, "prediction", "probability"]
    assert [row[:3] for row in rows[1:]] == ROWS
    assert [row[3:] for row in rows[1:]] == [["añejo", "0,75"], ["", ""], ["", ""], ["new", "1,0"]]
    assert text.replace("casi\r\nperfecto", "").count("\r\n") == (len(rows) if end == "\r\n" else 0)


def test_a_line_for_excel_above_the_header_is_no_row(tmp_path: Path) -> None:
    rows = annotate(write_table(tmp_path / "a.csv", "utf-8", above="sep=;\r\n")).decode().split("\r\n")
    assert rows[0] == "día;peso;nota;prediction;probability"


def test_points_stay_points(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1.5,a\n2.5,b\n")
    assert annotate(tmp_path / "a.csv", (2,)).decode() == "x,y,prediction,probability\n1.5,a,,\n2.5,b,añejo,0.75\n"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_table_that_is_no_csv_becomes_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    values = {"x": [1.5, None], "y": ["a, b", "c"]}
    if suffix == ".jsonl":
        lines = [json.dumps(dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
        path.write_text("\n".join(lines))
    else:
        pq.write_table(pa.table(values), path)
    assert annotate(path, (1, 2)).decode() == ('x,y,prediction,probability\n1.5,"a, b",añejo,0.75\n,c,new,1.0\n')


def test_a_column_with_the_name_of_a_prediction_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("prediction,y\n1,a\n2,b\n")
    with pytest.raises(SpecError) as caught:
        annotate(tmp_path / "b.csv", (1, 2))
    assert caught.value.action.startswith("write --output FILE.jsonl")


def test_probabilities_are_read_by_people_and_numbers_are_exact() -> None:
    """Excel showed 3,2863268e-11; a head may have any name."""
    form = annotated_table.TableForm(has_decimal_comma=True)
    answer: dict[str, dict[str, Any]] = {
        "probability": {"prediction": 0.12345678901},
        "tags": {"prediction": ["a", "b"], "probability": [0.98765, 3.3e-11], "probabilities": {"a": 0.98765}},
    }
    assert dict(predict._list_cells(answer, form)) == {
        "probability.prediction": "0,12345678901",
        "tags.prediction": "a;b",
        "tags.probability": "0,9877;0,0",
        "tags.probabilities.a": "0,9877",
    }
    assert dict(predict._list_cells(answer))["tags.probabilities.a"] == 0.98765
