"""Tables of every kind: what is read, and what is said about files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from runtime.data.formats import table_file
from runtime.errors import DataError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "text", "expected"),
    [
        ("a.csv", "a,b\n1,x\n2,y\n", (), {"a": [1, 2], "b": ["x", "y"]}),
        ("codes.csv", "a,b\n007,1\n010,2\n", ("a",), {"a": ["007", "010"], "b": [1, 2]}),
        (
            "quoted.csv",
            'a,b\n1,"two\nlines, a comma and a """"quote"\n',
            (),
            {"a": [1], "b": ['two\nlines, a comma and a ""quote']},
        ),
        ("mark.csv", b"\xef\xbb\xbfa,b\n1,\xc3\xb1\n", (), {"a": [1], "b": ["ñ"]}),
        ("empty.csv", "a,b,c\n1,,x\n,NA,NA\n", (), {"a": [1, None], "b": [None, None], "c": ["x", "NA"]}),
        ("tabs.tsv", "a\tb\n1\tx,y\n", (), {"a": [1], "b": ["x,y"]}),
        ("a.jsonl", '{"a": 1, "b": "x"}\n\n{"b": "y"}\n', (), {"a": [1, None], "b": ["x", "y"]}),
        ("text.jsonl", '{"a": 1, "b": "2024-01-01"}\n', ("a", "b"), {"a": ["1"], "b": ["2024-01-01"]}),
    ],
)
def test_read(tmp_path: Path, name: str, content: str | bytes, text: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert table_file.read(written(tmp_path, name, content), "data.train", text=text).to_pydict() == expected


def test_parquet_with_categories_and_codes(tmp_path: Path) -> None:
    table = pyarrow.table({"a": pyarrow.array(["x", "y"]).dictionary_encode(), "b": [7, 8], "c": [True, False]})
    parquet.write_table(table, tmp_path / "a.parquet")
    read = table_file.read(tmp_path / "a.parquet", "data.train", text=("b", "c"))
    assert read.to_pydict() == {"a": ["x", "y"], "b": ["7", "8"], "c": ["true", "false"]}


def test_only_required_columns_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "a,b,c\n1,2,3\n")
    assert table_file.read(path, "k", wanted={"c": "data.target"}, only=True).column_names == ["c"]
    assert table_file.read(path, "k", leave=("b",)).column_names == ["a", "c"]


def test_a_line_break_in_a_column_before_the_last_is_no_open_quote(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'a,b\n"two\nlines",2\n')
    assert table_file.read(path, "k", wanted={"a": "data.text"}, only=True).to_pydict() == {"a": ["two\nlines"]}
    path = written(tmp_path, "b.csv", 'a,b\n1,2\n3,"never closed\n4,5\n')
    with pytest.raises(DataError, match=r"row 2 \(line 3\): a quote is not closed"):
        table_file.read(path, "k", wanted={"a": "data.text"}, only=True)


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("zero.csv", "", ["data.train: ", "zero.csv is empty (0 bytes)"]),
        ("blank.csv", "\n\n", ["has no rows"]),
        ("header.csv", "a,b\n", ["has a header and no rows"]),
        (
            "mixed.csv",
            "a\nñandú\n".encode() + "cañón\n".encode("latin-1"),
            ["line 3", "the encodings are mixed: lines in LATIN1: 1, lines in UTF-8: 1", "export the file again"],
        ),
        ("wide.jsonl", '{"a": 1}'.encode("utf-16"), ["is UTF-16", "iconv -f UTF-16"]),
        ("latin.jsonl", '{"a": "señal"}\n'.encode("latin-1"), ["line 1: byte 0xF1 is not UTF-8", "señal"]),
        ("twice.csv", "a,b,a\n1,2,3\n", ["has several columns named a", "rename or remove"]),
        ("index.csv", ",a\n0,1\n", ["column 1 of", "has no name", "to_csv(..., index=False)"]),
        (
            "ragged.csv",
            "a,b\n1,2\n3\n4,5,6\n",
            [
                "has 2 columns; rows of another length: 2",
                "row 2 (line 3): 1 cells, 3",
                "row 3 (line 4): 3 cells, 4,5,6",
                "put quotes around",
            ],
        ),
        ("open.csv", 'a,b\n1,2\n3,"never closed\n4,5\n', ["row 2 (line 3): a quote is not closed"]),
        ("broken.jsonl", '{"a": 1}\n{"a": \n', ["line 2, column", "expecting value", "fix the line"]),
        ("list.jsonl", "[1, 2]\n", ["line 1 is not an object: [1, 2]"]),
        ("types.jsonl", '{"a": 1}\n{"a": "x"}\n', ['line 2: "a" is text, in line 1 it is a number']),
        ("cut.parquet", b"PAR1 and nothing else", ["is not a Parquet file, or is incomplete"]),
        (
            "sheet.xlsx",
            "PK",
            ["is an Excel file", 'libreoffice --headless --convert-to "csv:', "44,34,76", "pandas.read_excel"],
        ),
        ("sheet.ods", "PK", ["is an OpenDocument spreadsheet"]),
        ("table.sav", "x", ["has an unknown file type", "ends in .csv, .tsv, .jsonl, .parquet, .arrow"]),
        (
            "lacks.csv",
            "etiqueta,b\n1,2\n",
            ["data.target: ", 'has no column "etiquetas"', "its columns: etiqueta, b", 'did you mean "etiqueta"?'],
        ),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, parts: list[str]) -> None:
    path = written(tmp_path, name, content)
    wanted = {"etiquetas": "data.target"} if name == "lacks.csv" else {}
    with pytest.raises(DataError) as error:
        table_file.read(path, "data.train", wanted=wanted)
    message = str(error.value)
    assert not [part for part in parts if part not in message], message
    assert "possible: " in message
    assert "do: " in message


def test_a_missing_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        table_file.read(tmp_path, "data.train")
    with pytest.raises(DataError, match="cannot be read: no such file"):
        table_file.read(tmp_path / "gone.csv", "data.train")
