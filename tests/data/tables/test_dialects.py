# ruff: noqa: RUF001 - Cyrillic on purpose
"""Tables as spreadsheets, statistics programs and databases write them: read right, or refused with what was found."""

from __future__ import annotations

import csv
import datetime
import io
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv as arrow_csv

from drivetrain.data.formats import csv_layout, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles, Dialect
from drivetrain.errors import DataError

ROWS = [["Málaga", 1, 0.5, "sí"], ["Köln", 2, -1.25, "no"], ["Orléans", 3, 1234.75, "sí"]]
HEADER = ["ciudad", "n", "carga", "falla"]
TABLE = {
    "ciudad": ["Málaga", "Köln", "Orléans"],
    "n": [1, 2, 3],
    "carga": [0.5, -1.25, 1234.75],
    "falla": ["sí", "no", "sí"],
}
NUMBERS = {"a": [1.5, 2.25], "b": [3, 4]}


def comma(value: object) -> object:
    """A number as a spreadsheet in most of Europe writes it."""
    return f"{value}".replace(".", ",") if isinstance(value, float) else value


def thousands(value: object) -> object:
    return f"{value:,.2f}".translate({44: ".", 46: ","}) if isinstance(value, float) else value


def write_csv(change: Callable[[object], object] = lambda value: value, **options: Any) -> str:
    """The table in the way of Python's writer."""
    text = io.StringIO()
    csv.writer(text, **options).writerows([HEADER, *[[change(cell) for cell in row] for row in ROWS]])
    return text.getvalue()


def excel(change: Callable[[object], object] = comma, sign: str = ";") -> str:
    """The table in the way of Excel: CRLF, quotes only where needed."""
    return write_csv(change, delimiter=sign, lineterminator="\r\n")


def write_csv2() -> str:
    """The table in the way of R's write.csv2(row.names = FALSE): texts in quotes, numbers not."""
    rows = [
        [f'"{name}"' for name in HEADER],
        *[[f'"{c}"' if isinstance(c, str) else str(comma(c)) for c in row] for row in ROWS],
    ]
    return "\n".join(";".join(row) for row in rows) + "\n"


def arrow(**options: Any) -> bytes:
    """The table as pyarrow writes it."""
    table = pyarrow.table(list(map(list, zip(*ROWS, strict=True))), HEADER)
    sink = io.BytesIO()
    arrow_csv.write_csv(table, sink, arrow_csv.WriteOptions(**options))
    return sink.getvalue()


def sqlite(separator: str) -> bytes:
    """The table as the command line of SQLite writes it."""
    values = ",".join(f"('{a}',{b},{c},'{d}')" for a, b, c, d in ROWS)
    script = f'create table t({",".join(HEADER)}); insert into t values {values};\n.headers on\n.mode csv\n.separator "{separator}"\nselect * from t;'
    return subprocess.run(["sqlite3", ":memory:"], input=script.encode(), capture_output=True, check=True).stdout


def numpy_text(delimiter: str, fmt: str) -> bytes:
    """Numbers as numpy.savetxt writes them."""
    text = io.BytesIO()
    np.savetxt(
        text, np.array([[1.5, 3], [2.25, 4]]), delimiter=delimiter, fmt=fmt, header=delimiter.join("ab"), comments=""
    )
    return text.getvalue()


READ: dict[str, tuple[str | bytes, Mapping[str, Any], str]] = {
    "excel in english": (write_csv(), TABLE, ""),
    "excel utf-8 with mark": ("\ufeff" + excel(), TABLE, "semicolons, decimal commas"),
    "excel in german": (excel().encode("cp1252"), TABLE, "semicolons, decimal commas, windows-1252"),
    "excel in spanish with euros": (
        excel(lambda v: f"{v:.2f} €".replace(".", ",") if isinstance(v, float) else v).encode("cp1252"),
        TABLE,
        "semicolons, decimal commas, windows-1252",
    ),
    "excel unicode text": (excel(sign="\t").encode("utf-16"), TABLE, "tabs, decimal commas, utf-16"),
    "excel unicode big endian": (
        b"\xfe\xff" + excel(sign="\t").encode("utf-16-be"),
        TABLE,
        "tabs, decimal commas, utf-16",
    ),
    "excel with thousands": (excel(thousands).encode("cp1252"), TABLE, "semicolons, decimal commas, windows-1252"),
    "excel with sep=": ("sep=;\r\n" + excel(), TABLE, "semicolons, decimal commas"),
    "excel with sep= and mark": ("\ufeffsep=;\r\n" + excel(), TABLE, "semicolons, decimal commas"),
    "excel in french": (
        excel(lambda v: f"{v:,.2f}".replace(",", "\u202f").replace(".", ",") if isinstance(v, float) else v),
        TABLE,
        "semicolons, decimal commas",
    ),
    "excel in french, narrow no-break space lost": (
        excel(lambda v: f"{v:,.2f}".replace(",", "\xa0").replace(".", ",") if isinstance(v, float) else v).encode(
            "cp1252"
        ),
        TABLE,
        "semicolons, decimal commas, windows-1252",
    ),
    "excel in switzerland": (
        excel(lambda v: f"{v:,.2f}".replace(",", "’") if isinstance(v, float) else v).encode("cp1252"),
        TABLE,
        "semicolons, windows-1252",
    ),
    "excel in english with thousands": (write_csv(lambda v: f"{v:,.2f}" if isinstance(v, float) else v), TABLE, ""),
    "excel in english with dollars": (
        write_csv(lambda v: f"{'-' * (v < 0)}${abs(v):,.2f}" if isinstance(v, float) else v),
        TABLE,
        "",
    ),
    "excel with trailing semicolons": (excel().replace("\r\n", ";;\r\n"), TABLE, "semicolons, decimal commas"),
    "trailing semicolons below the header": (
        excel().replace("\r\n", ";\r\n").replace("falla;\r\n", "falla\r\n"),
        TABLE,
        "semicolons, decimal commas",
    ),
    "excel with cleared rows at the end": (excel() + ";;;\r\n;;;\r\n", TABLE, "semicolons, decimal commas"),
    "empty lines": ("\n\n" + write_csv(lineterminator="\n").replace("\n", "\n\n"), TABLE, ""),
    "quotes everywhere": (write_csv(comma, delimiter=";", quoting=csv.QUOTE_ALL), TABLE, "semicolons, decimal commas"),
    "decimal commas in quotes": (write_csv(comma), TABLE, "decimal commas"),
    "libreoffice in english": (write_csv(lineterminator="\n"), TABLE, ""),
    "libreoffice in german": (
        write_csv(comma, delimiter=";", lineterminator="\n"),
        TABLE,
        "semicolons, decimal commas",
    ),
    "R write.csv2": (write_csv2(), TABLE, "semicolons, decimal commas"),
    "R write.csv2 in latin-1": (write_csv2().encode("latin-1"), TABLE, "semicolons, decimal commas, windows-1252"),
    "R write.table with sep and dec": (write_csv2().replace(";", "\t"), TABLE, "tabs, decimal commas"),
    "pyarrow": (arrow(), TABLE, ""),
    "pyarrow with semicolons": (arrow(delimiter=";"), TABLE, "semicolons"),
    "pyarrow with pipes": (arrow(delimiter="|", quoting_style="none"), TABLE, "pipes"),
    "numpy": (numpy_text(",", "%g"), NUMBERS, ""),
    "numpy in columns of exponents": (numpy_text(";", "%.18e"), {"a": [1.5, 2.25], "b": [3.0, 4.0]}, "semicolons"),
    "sqlite": (sqlite(","), TABLE, ""),
    "sqlite with pipes": (sqlite("|"), TABLE, "pipes"),
    "mysql outfile": (write_csv(delimiter="\t", lineterminator="\n"), TABLE, "tabs"),
    "old mac line ends": (write_csv(lineterminator="\r"), TABLE, ""),
    "percent signs": ("a;b\n1,5 %;3\n2,25 %;4\n", NUMBERS, "semicolons, decimal commas"),
    "cells that are not there": (
        "a;b\n1,5;3\nNA;\n2,25;4\n",
        {"a": [1.5, None, 2.25], "b": [3, None, 4]},
        "semicolons, decimal commas",
    ),
    "a semicolon in a cell": ('a,b\n1,"x; y"\n2,z\n', {"a": [1, 2], "b": ["x; y", "z"]}, ""),
    "lists of numbers stay text": ('a,b\n"1,2,3",x\n"4,5",y\n', {"a": ["1,2,3", "4,5"], "b": ["x", "y"]}, ""),
    "german dates stay text": (
        "a;b\n31.12.2024;1,5\n01.01.2025;2,5\n",
        {"a": ["31.12.2024", "01.01.2025"], "b": [1.5, 2.5]},
        "semicolons, decimal commas",
    ),
    "dates": ("a;b\n2024-12-31;1,5\n", {"a": [datetime.date(2024, 12, 31)], "b": [1.5]}, "semicolons, decimal commas"),
    "thousands beside decimals": ("a;b\n1.234;0,5\n", {"a": [1234], "b": [0.5]}, "semicolons, decimal commas"),
    "thousands in one column": ('a,b\n"1,234",0.5\n', {"a": [1234], "b": [0.5]}, ""),
    "millions": ("a;b\n1.234.567;x\n", {"a": [1234567], "b": ["x"]}, "semicolons, decimal commas"),
    "one column": ("a\n1\n2\n", {"a": [1, 2]}, ""),
    "a number among decimal commas that is none": (
        "a;b\n1,5;1\n2,5;2\nkaputt;3\n",
        {"a": ["1.5", "2.5", "kaputt"], "b": [1, 2, 3]},
        "semicolons, decimal commas",
    ),
}


@pytest.mark.parametrize(("content", "expected", "dialect"), READ.values(), ids=READ.keys())
def test_a_file_that_is_read(tmp_path: Path, content: str | bytes, expected: Mapping[str, Any], dialect: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    files = CsvFiles()
    assert table_file.read(path, "data.train", csv=files).to_pydict() == expected
    assert files.usual
    note = f"a.csv: {dialect}" if dialect else ""
    assert files.usual.note(path) == note
    assert note in ("", *files.notes)
    assert csv_layout.read_names(path, "data.train", CsvFiles()) == list(expected)
    assert table_file.head(path, "data.train", 100)[0].slice(0, 2).to_pydict() == {
        k: v[:2] for k, v in expected.items()
    }


REFUSED: dict[str, tuple[str | bytes, list[str]]] = {
    "a thousand or a decimal": (
        'a,b\n"1,234",x\n',
        [
            'column "a" row 1 (line 2): `1,234` can be 1.234 or 1234',
            "set data.csv: {decimal: comma} if it is 1.234, point if",
        ],
    ),
    "a thousand or a decimal with a point": (
        "a;b\n1.234;x\n2.500;y\n",
        ["`1.234` can be 1.234 or 1234", "set data.csv: {decimal: point} if it is 1.234, comma if it is 1234"],
    ),
    "both decimal signs": (
        "a;b\n1,5;2.5\n",
        ['decimal points (column "b" row 1 (line 2): `2.5`)', 'decimal commas (column "a" row 1 (line 2): `1,5`)'],
    ),
    "two separators": (
        "a,b;c\n1,5;2\n",
        ["separated by comma (2 columns: a | b;c) or by semicolon (2 columns: a,b | c)", "{delimiter: comma}"],
    ),
    "cyrillic": (
        "город,n\nМосква,1\n".encode("cp1251"),
        [
            "line 1: byte 0xE3 is not UTF-8, and its encoding is not clear: it reads `ãîðîä,n` in windows-1252",
            "`город,n` in windows-1251",
            "set data.csv: {encoding: NAME}",
        ],
    ),
    "dos": ("año,n\ncamión,1\n".encode("cp850"), ["`año,n` in cp850"]),
    "japanese": ("名前,n\n東京,1\n".encode("shift-jis"), ["`名前,n` in shift-jis"]),
    "utf-16 without mark": ("a;b\n1;2\n".encode("utf-16-le"), ["no byte order mark", "{encoding: utf-16-le}"]),
    "mixed encodings": ("a\nñandú\n".encode() + "cañón\n".encode("latin-1"), ["the encodings are mixed"]),
    "R with row names": ('"";"a"\n"1";2,5\n"2";3,5\n', ["column 1 of", "has no name", "row.names = FALSE"]),
    "R write.table with row names": (
        '"a" "b"\n'.replace(" ", ";") + '"1";2,5;x\n"2";3,5;y\n',
        ["has 2 columns; rows of another length: 2", "set data.csv: {skip: their number}"],
    ),
    "a value below no name": (
        "a;b;\n1;2;\n" + "1;2;\n" * 60_000 + "1;2;3\n",
        ["column without a name at its end", "row 60,002 (line 60,003) has `3`"],
    ),
    "percent and shares": (
        "a,b\n50%,x\n12%,y\n0%,y\n0,y\n0.5,z\n",
        ['"a" is in percent', "row 5 (line 6) has `0.5` without"],
    ),
    "excel": (b"PK\x03\x04 and more", ["is an Excel file, by its first bytes", "libreoffice --headless"]),
    "gzip": (b"\x1f\x8b\x08 and more", ["is compressed with gzip", "gunzip"]),
}


@pytest.mark.parametrize(("content", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_that_is_refused(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError) as caught:
        table_file.read(path, "data.train")
    message = str(caught.value)
    assert not [part for part in parts if part not in message], message
    assert "possible: " in message
    assert "do: " in message


@pytest.mark.parametrize(
    ("content", "declared", "expected"),
    [
        ('a,b\n"1,234",x\n', {"decimal": "comma"}, {"a": [1.234], "b": ["x"]}),
        ('a,b\n"1,234",x\n', {"decimal": "point"}, {"a": [1234], "b": ["x"]}),
        ("a;b\n1.234;x\n", {"decimal": "comma"}, {"a": [1234], "b": ["x"]}),
        ("a;b\n1.234;x\n", {"decimal": "point"}, {"a": [1.234], "b": ["x"]}),
        ("a,b;c\n1,5;2\n", {"delimiter": "comma"}, {"a": [1], "b;c": ["5;2"]}),
        ("город,n\nМосква,1\n".encode("cp1251"), {"encoding": "windows-1251"}, {"город": ["Москва"], "n": [1]}),
        ("名前,n\n東京,1\n".encode("shift-jis"), {"encoding": "shift-jis"}, {"名前": ["東京"], "n": [1]}),
        ("a;b\n1;ñ\n".encode("utf-16-le"), {"encoding": "utf-16-le"}, {"a": [1], "b": ["ñ"]}),
    ],
)
def test_what_is_declared_holds(
    tmp_path: Path, content: str | bytes, declared: dict[str, str], expected: Mapping[str, Any]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert table_file.read(path, "data.train", csv=CsvFiles(declared)).to_pydict() == expected


@pytest.mark.parametrize(
    ("content", "usual", "expected"),
    [
        ("a;b\n1.234;x\n", Dialect("semicolon", "utf-8", "comma"), [1234]),
        ("a;b\n1.234;x\n", Dialect("semicolon", "utf-8", "point"), [1.234]),
        ("a;b\n0.234;x\n", Dialect("semicolon", "utf-8", "comma"), [0.234]),
        ("a,b;c\n1,5;2\n", Dialect("comma", "utf-8"), [1]),
        ("a,b\n1,Москва\n".encode("cp1251"), Dialect("comma", "windows-1251"), [1]),
    ],
)
def test_the_file_of_training_decides_what_a_file_does_not_tell(
    tmp_path: Path, content: str | bytes, usual: Dialect, expected: list[float]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert table_file.read(path, "data", csv=CsvFiles(usual=usual))["a"].to_pylist() == expected


def test_a_declared_encoding_that_is_not_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content, message in (
        ("a\nñandú\n".encode(), "reads `Ã±andÃº`"),
        ("\ufeffa\n1\n".encode(), "byte order mark of UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            table_file.read(path, "data.train", csv=CsvFiles({"encoding": "windows-1252"}))


def test_text_that_is_kept_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a;b;c\n1,50;007;2,5\n")
    table = table_file.read(path, "data.train", text=("a", "b"))
    assert table.to_pydict() == {"a": ["1,50"], "b": ["007"], "c": [2.5]}


def test_a_million_cells_of_decimal_commas_are_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a;b;c;d;e\n" + "1,5;2,25;x;1.234,5;7\n" * 200_000)
    table = table_file.read(path, "data.train")
    assert (table["d"][199_999].as_py(), table["c"][0].as_py()) == (1234.5, "x")


def test_the_layout_of_a_header_in_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\n"a\nunit";b;\n1;2;\n')
    assert csv_layout.find(path, "k", CsvFiles()).names == ("a\nunit", "b")
    assert table_file.read(path, "k").to_pydict() == {"a\nunit": [1], "b": [2]}


def test_a_tsv_whose_header_has_commas_is_separated_by_tabs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("Height, cm\tWeight, kg\tlabel\n180\t80\tx\n")
    assert table_file.read(path, "data.train").column_names == ["Height, cm", "Weight, kg", "label"]
