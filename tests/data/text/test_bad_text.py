# ruff: noqa: RUF001 - Cyrillic on purpose
"""Bad texts: each case with the words of its message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.data.load_data import load
from drivetrain.errors import DataError, DrivetrainError, SpecError
from tests import reports

GOOD = [[f"texto {i} de la bomba", "ab"[i % 2]] for i in range(40)]


def lines(text: str, encoding: str = "utf-8") -> Callable[[Path], object]:
    return lambda folder: (folder / "reports.csv").write_bytes(text.encode(encoding)) and None


def rows(table_rows: list[list[str]], header: str = "descripcion,modo") -> Callable[[Path], object]:
    return lambda folder: reports.write_table(folder / "reports.csv", table_rows, header) and None


def parquet(**columns: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), folder / "reports.parquet")

    return write


def make_writer(held_rows: list[list[str]], header: str = "descripcion,modo") -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        rows(GOOD)(folder)
        reports.write_table(folder / "held.csv", held_rows, header)

    return write


TEXTS = [text for text, _ in GOOD]
BROKEN = '{"descripcion": "uno", "modo": "a"}\n{"descripcion": "dos", modo: "b"}\n'
CASES: dict[str, tuple[Callable[[Path], object], dict[str, str], tuple[str, ...]]] = {
    "text column of another name": (
        rows(GOOD, "descripción,modo"),
        {},
        ("data.text: ", 'has no column "descripcion"', "its columns: descripción, modo", 'did you mean "descripción"?'),
    ),
    "label column of another name": (
        rows(GOOD, "descripcion,modos"),
        {},
        ("data.labels.modo: ", 'has no column "modo"', 'did you mean "modos"?'),
    ),
    "zero bytes": (lines(""), {}, ("data.train: ", "is empty (0 bytes)")),
    "a header alone": (lines("descripcion,modo\n"), {}, ("data.train: ", "no rows")),
    "one class": (
        rows([[text, "a"] for text in TEXTS]),
        {},
        ("data.labels.modo: 40 rows, and modo is a in all of them", "two classes or more"),
    ),
    "no labels": (
        rows([[text, ""] for text in TEXTS]),
        {},
        ("data.train: 40 of 40 samples cannot be used", "row 1 (line 2): modo is empty"),
    ),
    "many empty texts": (
        rows([["" if i % 4 == 0 else text, label] for i, (text, label) in enumerate(GOOD)]),
        {},
        (
            "data.train: 10 of 40 samples",
            "row 5 (line 6): descripcion is empty",
            "at most a share of 0.05 (data.bad_samples)",
        ),
    ),
    "many missing labels": (
        rows([[text, " " if i < 3 else label] for i, (text, label) in enumerate(GOOD)]),
        {},
        ("data.train: 3 of 40 samples", "row 3 (line 4): modo is empty"),
    ),
    "a label that only validation has": (
        make_writer([["texto", "a"], ["texto", "c"], ["texto", "c"]]),
        {"data": ", validation: held.csv"},
        ('data.validation: column "modo": classes that are not in the training data: "c" (2)', "a, b"),
    ),
    "validation without the label column": (
        make_writer([["texto", "a"]], "descripcion,clase"),
        {"data": ", validation: held.csv"},
        ("data.labels.modo: ", 'held.csv has no column "modo"'),
    ),
    "validation without usable rows": (
        make_writer([["", "a"], ["texto", ""]]),
        {"data": ", validation: held.csv"},
        ("data.validation: 2 of 2 samples cannot be used",),
    ),
    "validation that is not there": (
        rows(GOOD),
        {"data": ", validation: later.csv"},
        ("data.validation: 'later.csv' does not exist",),
    ),
    "cyrillic": (
        lines("descripcion,modo\n" + "клапан сломан,a\nнасос,b\n" * 20, "cp1251"),
        {},
        (
            "reports.csv line 2: byte 0xEA is not UTF-8, and its encoding is not clear",
            "`клапан сломан,a` in windows-1251",
        ),
    ),
    "a header name twice": (
        lines("descripcion,modo,modo\nuno,a,b\n"),
        {},
        ("several columns named modo", "rename or remove"),
    ),
    "a comma without quotes": (
        lines("descripcion,modo\n" + "uno,a\ndos,b\n" * 9 + "uno, dos y tres,a\n"),
        {},
        ("rows of another length: 1", "row 19 (line 20): 3 cells", "put quotes around"),
    ),
    "a quote that is not closed": (
        lines('descripcion,modo\nuno,a\ndos,b\ntres,"a\n' + "uno,b\n" * 9),
        {},
        ("a quote is not closed", "close it"),
    ),
    "identifiers as labels": (
        rows([[f"texto {i}", f"{i}.5"] for i in range(120)]),
        {},
        ("data.labels.modo: modo has 120 different values in 120 rows", "classes that repeat"),
    ),
    "labels that are decimal numbers": (
        parquet(descripcion=TEXTS, modo=[0.5, 1.5] * 20),
        {"train": "reports.parquet"},
        ('data.labels.modo: column "modo" of', "holds double, not text", "write the column as text"),
    ),
    "texts that are numbers": (
        parquet(descripcion=[0.5, 1.5] * 20, modo=["a", "b"] * 20),
        {"train": "reports.parquet"},
        ('data.text: column "descripcion" of', "holds double, not text"),
    ),
    "a column without any value": (
        parquet(descripcion=TEXTS, modo=[None] * 40),
        {"train": "reports.parquet"},
        ('data.labels.modo: column "modo" of', "is empty"),
    ),
    "half a Parquet file": (
        lambda folder: (folder / "reports.parquet").write_bytes(b"PAR1 and no more") and None,
        {"train": "reports.parquet"},
        ("data.train: ", "is not a Parquet file, or is incomplete"),
    ),
    "a broken line of JSON": (
        lambda folder: (folder / "reports.jsonl").write_text(BROKEN) and None,
        {"train": "reports.jsonl"},
        ("reports.jsonl line 2", "one JSON object in each line"),
    ),
    "a spreadsheet": (
        lambda folder: (folder / "reports.xlsx").write_bytes(b"PK") and None,
        {"train": "reports.xlsx"},
        ("reports.xlsx is an Excel file", "libreoffice --headless"),
    ),
    "a folder": (
        lambda folder: (folder / "reports.csv").mkdir(),
        {},
        ("reports.csv is a folder without a table", "name one file"),
    ),
    "every class has one row": (
        rows([["texto", f"c{i}"] for i in range(9)]),
        {},
        ("too few to leave any for validation", "set data.validation to a path"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_texts(tmp_path: Path, case: str) -> None:
    write, options, message_parts = CASES[case]
    write(tmp_path)
    with pytest.raises(DataError) as caught:
        load(reports.job(tmp_path, **{"labels": "modo", **options}))
    _check(caught.value, message_parts)


def _check(error: DrivetrainError, message_parts: tuple[str, ...]) -> None:
    message = str(error)
    for part in message_parts:
        assert part in message, message
    assert "\n  possible: " in message
    assert "\n  do:       " in message


SPECS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "the text column as a label": (
        {"labels": "[modo, descripcion]"},
        ("data.labels: has 'descripcion', which data.text has too",),
    ),
    "a column twice": ({"labels": "[modo, modo]"}, ("data.labels: ", "column names that differ")),
    "no column": ({"labels": "[]"}, ("data.labels: is []", "a column, a list of columns, or a mapping")),
    "a weight below zero": ({"labels": "{modo: -1, causa: 1}"}, ("data.labels.modo: is -1", "a number > 0")),
    "a setting of a column": (
        {"labels": "{modo: {wieght: 1}, causa: 1}"},
        ("data.labels.modo.wieght: unknown key", 'did you mean "weight"?'),
    ),
    "a short max_length": ({"data": ", max_length: 4"}, ("data.max_length: is 4", "a number >= 8 or auto")),
    "heads that do not divide the width": (
        {"model": "{name: encoder, heads: 3, width: 16}"},
        ("model.heads: is 3, and width is 16",),
    ),
    "a metric of no column": (
        {"train_keys": ", early_stopping: {metric: validation/causas/f1}"},
        ("early_stopping.metric", 'did you mean "validation/causa/f1"?'),
    ),
    "a loss for numbers": ({"train_keys": ", loss: mse"}, ("train.loss: is 'mse'", "cross-entropy, focal")),
}


@pytest.mark.parametrize("case", SPECS)
def test_bad_specs(tmp_path: Path, case: str) -> None:
    options, message_parts = SPECS[case]
    with pytest.raises(SpecError) as caught:
        reports.job(tmp_path, **options)
    _check(caught.value, message_parts)
