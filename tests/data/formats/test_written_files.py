"""CSV files as programs write them, each read cell by cell as its source table, or refused with what was found.

`written/manifest.json` has the program and version that wrote each file, `written/tables.json` the source tables.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from drivetrain.data.formats import csv_dialect, csv_layout, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.errors import DataError
from tests.messages import says

FOLDER = Path(__file__).parent / "written"
MANIFEST: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
TABLES: dict[str, dict[str, list[Any]]] = json.loads((FOLDER / "tables.json").read_text(encoding="utf-8"))
TEXTS = ("code", "name", "kind")


def expect_cells(entry: dict[str, Any], column: str) -> list[Any]:
    cells = TABLES[entry["table"]][column]
    if column == "share" and entry.get("percent"):
        return [cell * 100 for cell in cells]
    # A spreadsheet that writes its cells as shown rounds them.
    return (
        [None if cell is None else round(cell, entry.get("digits", 12)) for cell in cells]
        if column == "amount"
        else cells
    )


def are_same(one: Any, other: Any) -> bool:
    if one is None:
        return other is None or (isinstance(other, float) and math.isnan(other))
    if isinstance(one, str):
        return bool(one == other)
    return isinstance(other, int | float) and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("name", MANIFEST)
def test_a_file_is_read_right_or_refused(name: str) -> None:
    entry = MANIFEST[name]
    if "refused" in entry:
        with pytest.raises(DataError) as error:
            table_file.read(FOLDER / name, "data.train", text=TEXTS)
        assert entry["refused"] in str(error.value)
        return
    table = table_file.read(FOLDER / name, "data.train", text=TEXTS, csv=CsvFiles()).to_pydict()
    assert list(table) == list(TABLES[entry["table"]])
    for column, cells in table.items():
        expected_cells = expect_cells(entry, column)
        assert len(cells) == len(expected_cells)
        wrong = [
            (row, one, two)
            for row, (one, two) in enumerate(zip(expected_cells, cells, strict=True))
            if not are_same(one, two)
        ]
        assert not wrong, column


def test_every_file_is_in_the_manifest_and_is_small() -> None:
    names = {path.name for path in FOLDER.iterdir()} - {"manifest.json", "tables.json"}
    assert names == set(MANIFEST)
    assert len(names) >= 30
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [
        ("windows-1250", ["dveře jsou zavřené", "stroj běží", "čidlo", "převodovka"]),
        ("windows-1250", ["erősítő", "fűrész", "hőmérő", "őrült"]),
        ("windows-1254", ["a\u011f\u0131r yük", "çal\u0131\u015f\u0131yor", "dü\u015fük"]),
    ],
)
def test_text_that_may_be_of_another_encoding_is_shown(tmp_path: Path, encoding: str, texts: list[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join(["text,kind", *(f"{text},x" for text in texts)]).encode(encoding))
    files = CsvFiles()
    table_file.read(path, "data.train", csv=files)
    shown = texts[0].encode(encoding).decode("windows-1252")
    assert says(files.notes[0], "read-as-windows-1252", 2, f"{shown},x")
    assert f"data.csv: {{encoding: {encoding}}}" in files.notes[0]
    table = table_file.read(path, "data.train", csv=CsvFiles({"encoding": encoding}))
    assert table["text"].to_pylist() == texts


@pytest.mark.parametrize(
    "texts",
    [
        ["señal", "año", "avería"],
        ["größe", "müll", "läuft"],
        ["élève", "où", "maïs", "œuvre"],
        ["coração", "três", "você"],
        ["José", "Zoë", "señal", "Größe", "café"],
        ["blåbær", "øl"],
        ["25 °C", "½", "µm"],
    ],
)
def test_western_text_is_read(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join(["text,kind", *(f"{text},x" for text in texts)]).encode("windows-1252"))
    assert table_file.read(path, "data.train")["text"].to_pylist() == texts


def test_the_percent_form_of_a_column_is_that_of_training(tmp_path: Path) -> None:
    percent, share = tmp_path / "percent.csv", tmp_path / "share.csv"
    percent.write_text('a,b\n"12,5%","1,5"\n"97%","2,5"\n')
    share.write_text("a,b\n0,1.5\n0.97,2.5\n")
    files = CsvFiles()
    table_file.read(percent, "data.train", csv=files)
    model = {"csv": json.loads(json.dumps(files.stored))}
    assert model["csv"]["percent"] == ["a"]
    with pytest.raises(DataError, match=r'column "a" is in percent in the training data, and row 2 .* has `0.97`'):
        table_file.read(share, "data", csv=csv_dialect.of_model(model, {}))
    percent_table = table_file.read(percent, "data", csv=csv_dialect.of_model(model, {}))
    assert percent_table["a"].to_pylist() == [12.5, 97.0]
    first = CsvFiles()
    table_file.read(share, "data.train", csv=first)
    with pytest.raises(DataError, match=r'column "a" is not in percent in the training data, and row 1 .* has `12.5%`'):
        table_file.read(percent, "data.validation", csv=first)


def test_json_in_a_cell_has_its_own_backslashes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"{""x"": ""say \\""hi\\"" now""}",1\n')
    assert table_file.read(path, "k")["a"].to_pylist() == ['{"x": "say \\"hi\\" now"}']


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    """Below a line for Excel, empty lines, and a cell with line breaks; with any line ends."""
    rows = ['"sep=;"', "", "a;b", '1;"two', "", 'lines"', "", "3;x", "4;y"]
    for end, encoding in (("\n", "utf-8-sig"), ("\r\n", "utf-16"), ("\r", "utf-8")):
        path = tmp_path / "a.csv"
        path.write_bytes(end.join(rows).encode(encoding))
        csv_layout.find(path, "k", CsvFiles())
        assert [csv_dialect.name_row(path, row) for row in (1, 2, 3)] == [
            "row 1 (line 4)",
            "row 2 (line 8)",
            "row 3 (line 9)",
        ]
    assert csv_dialect.name_row(tmp_path / "a.parquet", 7) == csv_dialect.name_row(tmp_path / "none.csv", 7) == "row 7"
