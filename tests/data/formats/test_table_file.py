"""Tables of every kind: what is read, and what is said about files that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from drivetrain.data.formats import csv_dialect, csv_layout, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.formats.csv_file import CsvReader
from drivetrain.errors import DataError
from tests.axes import each_once
from tests.messages import saying


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
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
    assert table_file.read(write_file(tmp_path, name, content), "data.train", text=text).to_pydict() == expected


def test_parquet_with_categories_and_codes(tmp_path: Path) -> None:
    table = pyarrow.table({"a": pyarrow.array(["x", "y"]).dictionary_encode(), "b": [7, 8], "c": [True, False]})
    parquet.write_table(table, tmp_path / "a.parquet")
    read = table_file.read(tmp_path / "a.parquet", "data.train", text=("b", "c"))
    assert read.to_pydict() == {"a": ["x", "y"], "b": ["7", "8"], "c": ["true", "false"]}


LETTERS = ["a", "b", None, "ñ"]
TEXTS = {
    "string": pyarrow.array(LETTERS),
    "large string": pyarrow.array(LETTERS, pyarrow.large_string()),
    "string view": pyarrow.array(LETTERS).cast(pyarrow.string_view()),
    "dictionary": pyarrow.array(LETTERS).dictionary_encode(),
    "dictionary of large strings": pyarrow.array(LETTERS, pyarrow.large_string()).dictionary_encode(),
}


@pytest.mark.parametrize(("kind", "suffix"), each_once(TEXTS, ["parquet", "arrow"]))
def test_text_is_the_same_in_every_type(tmp_path: Path, kind: str, suffix: str) -> None:
    table = pyarrow.table({"a": TEXTS[kind], "nothing": pyarrow.nulls(4), "lists": [[], None, [], []]})
    if suffix == "parquet":
        parquet.write_table(table, tmp_path / "a.parquet")
    else:
        with ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
            file.write_table(table)
    for read in (
        table_file.read(tmp_path / f"a.{suffix}", "data.train"),
        table_file.head(tmp_path / f"a.{suffix}", "data.train", 4)[0],
    ):
        assert read.schema.field("a").type == pyarrow.string()
        assert read["a"].to_pylist() == LETTERS


@pytest.mark.parametrize("kind", ["dictionary of views", "runs"])
def test_other_encodings_of_text(tmp_path: Path, kind: str) -> None:
    views = pyarrow.array(["a", "b"]).cast(pyarrow.string_view())
    cells = {
        "dictionary of views": pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 0, 1, None]), views),
        "runs": pyarrow.RunEndEncodedArray.from_arrays(pyarrow.array([2, 3, 4], pyarrow.int32()), ["a", "b", None]),
    }[kind]
    table = pyarrow.table({"a": cells})
    with ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    assert table_file.read(tmp_path / "a.arrow", "k")["a"].to_pylist() == ["a", "a", "b", None]


def test_dictionaries_in_a_struct_differ_between_row_groups(tmp_path: Path) -> None:
    parts = [pyarrow.array([*letters] * 500).dictionary_encode() for letters in ("ab", "xb")]
    structs = pyarrow.chunked_array([pyarrow.StructArray.from_arrays([part], ["field"]) for part in parts])
    parquet.write_table(pyarrow.table({"a": structs}), tmp_path / "a.parquet", row_group_size=1000)
    assert table_file.read(tmp_path / "a.parquet", "k")["a"].to_pylist() == structs.to_pylist()


def test_shards_of_a_table_may_lack_the_values_of_a_column(tmp_path: Path) -> None:
    for number, cells in enumerate((pyarrow.nulls(2), pyarrow.array(["a", "b"], pyarrow.large_string()))):
        parquet.write_table(pyarrow.table({"a": cells}), tmp_path / f"t-0000{number}-of-00002.parquet")
    assert table_file.read(tmp_path / "t-00000-of-00002.parquet", "k")["a"].to_pylist() == [None, None, "a", "b"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_cell_of_five_megabytes(tmp_path: Path, suffix: str) -> None:
    cells = ["short", "long, " * 900_000, "short"]
    if suffix == "csv":
        path = write_file(tmp_path, "a.csv", "a,b\n" + "".join(f'"{cell}",{i}\n' for i, cell in enumerate(cells)))
    else:
        path = write_file(
            tmp_path, "a.jsonl", "".join(json.dumps({"a": cell, "b": i}) + "\n" for i, cell in enumerate(cells))
        )
    assert table_file.read(path, "k")["a"].to_pylist() == cells
    assert table_file.head(path, "k", 1)[0]["a"].to_pylist() == cells[:1]


@pytest.mark.parametrize("sign", [",", ";"])
def test_a_header_that_is_longer_than_the_sample(tmp_path: Path, sign: str) -> None:
    names = [f"column number {i} of very many" for i in range(20_000)]
    rows = [sign.join(names), *(sign.join(str(i + row) for i in range(20_000)) for row in range(3))]
    path = write_file(tmp_path, "a.csv", "\n".join(rows) + "\n")
    layout = csv_layout.find(path, "k", CsvFiles())
    assert list(layout.names) == names
    assert layout.rows == 3
    assert table_file.read(path, "k", required={names[-1]: "k"}, only=True)[names[-1]].to_pylist() == [
        19999,
        20000,
        20001,
    ]


NO_HEADER = {
    "numbers and classes": ["0.5,1,sí", "1.5,2,no", "2.5,3,sí", "3.5,4,no", "4.5,5,sí", "5.5,6,sí"],
    "texts and classes": [f'"La bomba {i} gotea, mucho",{["sí", "no"][i % 2]}' for i in range(8)],
    "numbers alone": ["0.5,1,0", "1.5,-2,1", "2.5,3,0", "3.5,4,1", "4.5,5,0", "5.5,6,0"],
    "with gaps": ["0.5,1,sí", ",2,no", "2.5,,sí", "3.5,4,no", "4.5,5,sí", "5.5,6,sí"],
}


@pytest.mark.parametrize("case", NO_HEADER)
def test_a_file_without_a_header_is_refused(tmp_path: Path, case: str) -> None:
    path = write_file(tmp_path, "a.csv", "\n".join(NO_HEADER[case]) + "\n")
    with pytest.raises(
        DataError, match=r"seems to have no header(.|\n)*write a line with the names above it, such as c1,c2"
    ):
        table_file.read(path, "data.train")


@pytest.mark.parametrize("header", ["a,b,y", "0,1,2", "400.5,410.5,y", "2019,2020,2021", "sí,b,no", "a,b,sí"])
def test_names_that_look_like_values_are_names(tmp_path: Path, header: str) -> None:
    numbers = header in ("0,1,2", "2019,2020,2021")
    rows = [f"{i / 2},{i},{i % 2 if numbers else ['sí', 'no'][i % 2]}" for i in range(8)]
    path = write_file(tmp_path, "a.csv", "\n".join([header, *rows]) + "\n")
    assert table_file.read(path, "data.train").column_names == header.split(",")


def test_only_required_columns_are_read(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", "a,b,c\n1,2,3\n")
    assert table_file.read(path, "k", required={"c": "data.target"}, only=True).column_names == ["c"]
    assert table_file.read(path, "k", leave=("b",)).column_names == ["a", "c"]


@pytest.mark.parametrize("text", ["a,b\n", "a,b"])
def test_the_first_rows_of_a_file_without_rows_are_an_error(tmp_path: Path, text: str) -> None:
    reader = CsvReader(write_file(tmp_path, "a.csv", text), "k", CsvFiles())
    with pytest.raises(DataError, match="has a header and no rows"):
        reader.head(5)


def test_a_line_break_in_a_column_before_the_last_is_no_open_quote(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'a,b\n"two\nlines",2\n')
    assert table_file.read(path, "k", required={"a": "data.text"}, only=True).to_pydict() == {"a": ["two\nlines"]}
    path = write_file(tmp_path, "b.csv", 'a,b\n1,2\n3,"never closed\n4,5\n')
    with pytest.raises(DataError, check=saying("row-line-quote-closed", 2, 3)):
        table_file.read(path, "k", required={"a": "data.text"}, only=True)


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("zero.csv", "", ["data.train: ", "zero.csv is empty (0 bytes)"]),
        ("blank.csv", "\n\n", ["has no rows"]),
        ("header.csv", "a,b\n", ["has a header and no rows"]),
        ("header alone.csv", "a,b", ["has a header and no rows"]),
        ("cut off.csv", "a,b\n1,2\n".encode("utf-16") + b"3", ["cannot be read", "truncated data"]),
        (
            "mixed.csv",
            "a\nñandú\n".encode() + "cañón\n".encode("latin-1"),
            ["line 3", "the encodings are mixed, as other lines are UTF-8", "export the file again"],
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
        ("table.sav", "x", ["is an SPSS file", "pandas.read_spss"]),
        ("table.rds", "x", ["has an unknown file type", "ends in .csv, .tsv, .jsonl, .parquet, .arrow"]),
        (
            "lacks.csv",
            "etiqueta,b\n1,2\n",
            ["data.target: ", 'has no column "etiquetas"', "its columns: etiqueta, b", 'did you mean "etiqueta"?'],
        ),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, parts: list[str]) -> None:
    path = write_file(tmp_path, name, content)
    required = {"etiquetas": "data.target"} if name == "lacks.csv" else {}
    with pytest.raises(DataError) as error:
        table_file.read(path, "data.train", required=required)
    message = str(error.value)
    assert not [part for part in parts if part not in message], message
    assert "possible: " in message
    assert "do: " in message


def test_a_sheet_called_csv_becomes_the_table_that_the_job_names(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", b"PK\x03\x04")
    with pytest.raises(DataError) as error:
        table_file.read(path, "data.train")
    assert f"mv {path} {path}.xlsx\n" in str(error.value)
    assert str(error.value).endswith(f"index=False)' {path}.xlsx {path}")


def test_a_missing_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        table_file.read(tmp_path, "data.train")
    with pytest.raises(DataError, check=saying("cannot-be-read-no-such-file")):
        table_file.read(tmp_path / "gone.csv", "data.train")


ABOVE = {
    "a title": ("Informe de ventas\nGenerado: 01/02/2025\n\n", 3),
    "comments": ("# exported by X, 2025\n# units: m, s\n", 2),
    "a sign of its own": ("Título; con signo\n", 1),
}


@pytest.mark.parametrize(("sign", "case"), each_once([",", ";", "\t"], ABOVE))
def test_lines_above_the_header_are_skipped_if_their_number_is_declared(tmp_path: Path, case: str, sign: str) -> None:
    above, count = ABOVE[case]
    rows = "".join(f"{i / 2}{sign}text {i}{sign}{'ab'[i % 2]}\n" for i in range(9))
    path = write_file(tmp_path, "a.csv", above + sign.join(("z", "w", "y")) + "\n" + rows)
    with pytest.raises(
        DataError,
        match=r"rows of another length(.|\n)*lines above the header, such as titles, set data.csv: .skip: their number.",
    ):
        table_file.read(path, "data.train")
    table = table_file.read(path, "data.train", csv=CsvFiles({"skip": str(count)}))
    assert (
        table.to_pydict() == table_file.read(write_file(tmp_path, "b.csv", f"z{sign}w{sign}y\n{rows}"), "k").to_pydict()
    )
    assert csv_dialect.name_row(path, 1) == f"row 1 (line {count + 2})"


@pytest.mark.parametrize(
    "content",
    [
        "text,label\n" + "".join(f"bomba {i}; gotea,{'ab'[i % 2]}\n" for i in range(9)),
        "text,label,\n" + "".join(f"bomba {i}; gotea,{'ab'[i % 2]},\n" for i in range(9)),
    ],
    ids=["a sign in each text", "a separator at the end"],
)
def test_a_header_of_another_form_is_no_title(tmp_path: Path, content: str) -> None:
    assert table_file.read(write_file(tmp_path, "a.csv", content), "k").column_names == ["text", "label"]
