"""The rows of one table, and the forms in which people write them to files."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import ipc, parquet

N = 60
Columns = dict[str, list[Any]]
CITIES = ("Málaga", "Köln", "Orléans")
DAYS = [datetime(2024, 1, 1) + timedelta(hours=7 * n) for n in range(N)]
ROWS: Columns = {
    "load": [None if n % 7 == 3 else (n * 37 % 101 - 50) * 40.25 for n in range(N)],
    "code": [1 + n * 5 % 4 for n in range(N)],
    "city": [None if n % 9 == 4 else CITIES[n * n % 3] for n in range(N)],
    "good": [n * 3 % 5 < 2 for n in range(N)],
    "when": list(DAYS),
    "y": ["sí" if n * 11 % 17 < 8 else "no" for n in range(N)],
    "size": [(n * 29 % 61) * 2.5 - 70 for n in range(N)],
}


@dataclass(frozen=True)
class Form:
    """How a file with the same rows is written."""

    name: str
    write: Callable[[Path], object]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the job that trains on it, beside those of the reference."""


def format_cell(cell: Any) -> str:
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def make_csv_writer(
    sign: str = ",",
    *,
    end: str = "\n",
    encoding: str = "utf-8",
    head: str = "",
    quote: bool = False,
    **cells: Callable[[Any], str],
) -> Callable[[Path], object]:
    """A writer of CSV, with the form of the cells by column."""

    def write(path: Path) -> object:
        lines = [
            list(ROWS),
            *(
                [cells.get(name, format_cell)(cell) for name, cell in zip(ROWS, row, strict=True)]
                for row in zip(*ROWS.values(), strict=True)
            ),
        ]
        quoted = [[f'"{cell}"' if quote or sign in cell else cell for cell in line] for line in lines]
        return path.write_bytes((head + "".join(sign.join(line) + end for line in quoted)).encode(encoding))

    return write


def write_changed(
    change: Callable[[Columns], Columns], write: Callable[[Path, Columns], object]
) -> Callable[[Path], object]:
    return lambda path: write(path, change(dict(ROWS)))


def write_csv(path: Path, columns: Columns) -> None:
    rows = [columns, *([format_cell(cell) for cell in row] for row in zip(*columns.values(), strict=True))]
    path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")


def write_jsonl(path: Path, columns: Columns) -> None:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text(
        "".join(json.dumps(row, default=datetime.isoformat, ensure_ascii=False) + "\n" for row in rows),
        encoding="utf-8",
    )


def make_parquet_writer(
    metadata: dict[bytes, bytes] | None = None, options: Mapping[str, Any] | None = None, **kinds: Any
) -> Callable[[Path, Columns], object]:
    """A writer of Parquet, with the type of some columns."""

    def write(path: Path, columns: Columns) -> object:
        arrays = {name: pyarrow.array(cells, kinds.get(name)) for name, cells in columns.items()}
        return parquet.write_table(pyarrow.table(arrays).replace_schema_metadata(metadata), path, **options or {})

    return write


def write_dictionary(path: Path, columns: Columns) -> None:
    table = pyarrow.table(columns)
    for name in ("city", "y"):
        table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    parquet.write_table(table, path)


def write_arrow(path: Path, columns: Columns) -> None:
    table = pyarrow.table(columns)
    with ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=7)


def keep_columns(columns: Columns) -> Columns:
    return columns


def decompose_text(columns: Columns) -> Columns:
    return columns | {
        name: [cell and unicodedata.normalize("NFD", cell) for cell in columns[name]] for name in ("city", "y")
    }


def fill_empty(value: Any, *names: str) -> Callable[[Columns], Columns]:
    return lambda columns: (
        columns | {name: [value if cell is None else cell for cell in columns[name]] for name in names}
    )


def add_index(name: str) -> Callable[[Columns], Columns]:
    return lambda columns: {name: list(np.random.default_rng(0).permutation(N).tolist()), **columns}


def reverse_columns(columns: Columns) -> Columns:
    return dict(reversed(columns.items()))


def make_number_format(form: str) -> Callable[[Any], str]:
    return lambda cell: "" if cell is None else format(cell, form)


def format_with_comma(cell: Any) -> str:
    return format_cell(cell).replace(".", ",")


def format_european(cell: Any) -> str:
    return "" if cell is None else f"{cell:,.2f}".translate({44: ".", 46: ","})


def format_accounting(cell: Any) -> str:
    return "" if cell is None else f"({-cell})" if cell < 0 else str(cell)


def mark_empty(mark: str) -> Callable[[Any], str]:
    return lambda cell: mark if cell is None else format_cell(cell)


LARGE, VIEW = pyarrow.large_string(), pyarrow.string_view()
PANDAS = {b"pandas": b'{"index_columns": ["row"], "columns": []}'}
CSVS = [
    Form("semicolons", make_csv_writer(";")),
    Form("tabs", make_csv_writer("\t")),
    Form("pipes", make_csv_writer("|")),
    Form("CRLF", make_csv_writer(end="\r\n")),
    Form("quotes", make_csv_writer(quote=True)),
    Form("byte order mark", make_csv_writer(head="\ufeff")),
    Form("UTF-16", make_csv_writer(encoding="utf-16")),
    Form("windows-1252", make_csv_writer(encoding="windows-1252")),
    Form("line for Excel", make_csv_writer(";", head="sep=;\n")),
    Form("decimal commas", make_csv_writer(";", load=format_with_comma, size=format_with_comma)),
    Form(
        "decimal commas and points between thousands", make_csv_writer(";", load=format_european, size=format_european)
    ),
    Form("commas between thousands", make_csv_writer(load=make_number_format(",.2f"), size=make_number_format(",.2f"))),
    Form(
        "spaces between thousands",
        make_csv_writer(load=lambda cell: make_number_format(",.2f")(cell).replace(",", " ")),
    ),
    Form("exponents", make_csv_writer(load=make_number_format(".6e"), size=make_number_format(".6e"))),
    Form("zeros at the end", make_csv_writer(load=make_number_format(".4f"), size=make_number_format(".4f"))),
    Form("plus signs", make_csv_writer(load=make_number_format("+"), size=make_number_format("+"))),
    Form(
        "minus signs of typesetting",
        make_csv_writer(
            load=lambda cell: format_cell(cell).replace("-", "\u2212"),
            size=lambda cell: format_cell(cell).replace("-", "\u2212"),
        ),
    ),
    Form("accounting brackets", make_csv_writer(load=format_accounting, size=format_accounting)),
    Form(
        "currencies",
        make_csv_writer(load=lambda cell: "" if cell is None else f"{cell} €", size=lambda cell: f"{cell} $"),
    ),
    Form(
        "spaces around cells",
        make_csv_writer(
            load=lambda cell: f" {format_cell(cell)} ",
            city=lambda cell: f" {format_cell(cell)}  ",
            y=lambda cell: f"{cell} ",
        ),
    ),
    Form("codes with a point", make_csv_writer(code=lambda cell: f"{cell}.0")),
    Form("capital truth values", make_csv_writer(good=lambda cell: str(cell).upper())),
    Form(
        "zero-width spaces",
        make_csv_writer(city=lambda cell: f"\u200b{format_cell(cell)}", y=lambda cell: f"{cell}\ufeff"),
    ),
    *(
        Form(f"{mark} where there is no number", make_csv_writer(load=mark_empty(mark)))
        for mark in ("NA", "NaN", "NULL", "?", "-", "#N/D", "n.d.", "#DIV/0!")
    ),
    Form("cells that the job calls missing", write_changed(fill_empty(-999, "load"), write_csv), {"missing": [-999]}),
    Form(
        "words that the job calls missing",
        make_csv_writer(load=mark_empty("gone"), city=mark_empty("gone")),
        {"missing": "gone"},
    ),
    Form("decomposed", write_changed(decompose_text, write_csv)),
    Form("columns in another order", write_changed(reverse_columns, write_csv)),
    Form("Unnamed: 0", write_changed(add_index("Unnamed: 0"), write_csv)),
    Form("ISO times with a T", make_csv_writer(when=lambda cell: cell.isoformat())),
    Form(
        "dates with a form",
        make_csv_writer(when=lambda cell: cell.strftime("%d.%m.%Y %H:%M")),
        {"date_format": "%d.%m.%Y %H:%M"},
    ),
    *(
        Form(f"times as {form}", make_csv_writer(when=partial(lambda form, cell: cell.strftime(form), form)))
        for form in ("%d/%m/%Y %H:%M", "%b %d %Y %H:%M", "%Y/%m/%d %I:%M %p", "%Y%m%d%H%M%S")
    ),
    Form(
        "years of two digits",
        make_csv_writer(when=lambda cell: cell.strftime("%d.%m.%y %H:%M")),
        {"date_format": "%d.%m.%y %H:%M"},
    ),
]
JSONLS = [
    Form("objects", write_changed(keep_columns, write_jsonl)),
    Form("objects with keys in another order", write_changed(reverse_columns, write_jsonl)),
    Form("decomposed objects", write_changed(decompose_text, write_jsonl)),
    Form(
        "objects with words that the job calls missing",
        write_changed(fill_empty("gone", "city"), write_jsonl),
        {"missing": ["gone"]},
    ),
]
PARQUETS = [
    Form("string", write_changed(keep_columns, make_parquet_writer())),
    Form("pandas 3", write_changed(keep_columns, make_parquet_writer(PANDAS, city=LARGE, y=LARGE))),
    Form(
        "polars",
        write_changed(
            keep_columns,
            make_parquet_writer(
                None, {"compression": "zstd", "row_group_size": 16}, city=LARGE, y=LARGE, when=pyarrow.timestamp("us")
            ),
        ),
    ),
    Form("string view", write_changed(keep_columns, make_parquet_writer(city=VIEW, y=VIEW))),
    Form("dictionaries", write_changed(keep_columns, write_dictionary)),
    Form("decomposed strings", write_changed(decompose_text, make_parquet_writer())),
    Form("row groups", write_changed(keep_columns, make_parquet_writer(None, {"row_group_size": 7}))),
    Form("columns in another order in Parquet", write_changed(reverse_columns, make_parquet_writer())),
    Form("index of pandas without a name", write_changed(add_index("__index_level_0__"), make_parquet_writer())),
    Form("index of pandas with a name", write_changed(add_index("row"), make_parquet_writer(PANDAS))),
    *(
        Form(f"times in {unit}", write_changed(keep_columns, make_parquet_writer(when=pyarrow.timestamp(unit))))
        for unit in ("s", "ms", "ns")
    ),
    Form("float32", write_changed(keep_columns, make_parquet_writer(load=pyarrow.float32(), size=pyarrow.float32()))),
    Form(
        "decimals",
        write_changed(
            lambda c: c | {"load": [v if v is None else Decimal(str(v)) for v in c["load"]]}, make_parquet_writer()
        ),
    ),
    *(
        Form(f"codes in {kind}", write_changed(keep_columns, make_parquet_writer(code=kind)))
        for kind in (pyarrow.int8(), pyarrow.uint64(), pyarrow.float64())
    ),
    Form("codes as text", write_changed(lambda c: c | {"code": list(map(str, c["code"]))}, make_parquet_writer())),
    Form(
        "codes as text with a point",
        write_changed(lambda c: c | {"code": [f"{v}.0" for v in c["code"]]}, make_parquet_writer(code=LARGE)),
    ),
    Form(
        "truth values as numbers",
        write_changed(lambda c: c | {"good": list(map(int, c["good"]))}, make_parquet_writer()),
    ),
    Form(
        "times as text",
        write_changed(lambda c: c | {"when": list(map(str, c["when"]))}, make_parquet_writer(when=LARGE)),
    ),
    Form(
        "cells that the job calls missing in Parquet",
        write_changed(fill_empty(-999.0, "load"), make_parquet_writer()),
        {"missing": ["-999"]},
    ),
]
FORMS = {
    form.name: (form, suffix)
    for forms, suffix in ((CSVS, ".csv"), (JSONLS, ".jsonl"), (PARQUETS, ".parquet"))
    for form in forms
}
FORMS["tabs"] = (FORMS["tabs"][0], ".tsv")
FORMS["Arrow stream"] = (Form("Arrow stream", write_changed(keep_columns, write_arrow)), ".arrow")
