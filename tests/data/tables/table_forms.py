"""The rows of one table, and the forms in which people write them to files."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
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


def text(cell: Any) -> str:
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def csv(
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
                [cells.get(name, text)(cell) for name, cell in zip(ROWS, row, strict=True)]
                for row in zip(*ROWS.values(), strict=True)
            ),
        ]
        quoted = [[f'"{cell}"' if quote or sign in cell else cell for cell in line] for line in lines]
        return path.write_bytes((head + "".join(sign.join(line) + end for line in quoted)).encode(encoding))

    return write


def changed(change: Callable[[Columns], Columns], write: Callable[[Path, Columns], object]) -> Callable[[Path], object]:
    return lambda path: write(path, change(dict(ROWS)))


def csv_of(path: Path, columns: Columns) -> None:
    rows = [columns, *([text(cell) for cell in row] for row in zip(*columns.values(), strict=True))]
    path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")


def jsonl_of(path: Path, columns: Columns) -> None:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text(
        "".join(json.dumps(row, default=datetime.isoformat, ensure_ascii=False) + "\n" for row in rows),
        encoding="utf-8",
    )


def parquet_of(
    metadata: dict[bytes, bytes] | None = None, options: Mapping[str, Any] | None = None, **kinds: Any
) -> Callable[[Path, Columns], object]:
    """A writer of Parquet, with the type of some columns."""

    def write(path: Path, columns: Columns) -> object:
        arrays = {name: pyarrow.array(cells, kinds.get(name)) for name, cells in columns.items()}
        return parquet.write_table(pyarrow.table(arrays).replace_schema_metadata(metadata), path, **options or {})

    return write


def dictionary(path: Path, columns: Columns) -> None:
    table = pyarrow.table(columns)
    for name in ("city", "y"):
        table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    parquet.write_table(table, path)


def arrow(path: Path, columns: Columns) -> None:
    table = pyarrow.table(columns)
    with ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=7)


def same(columns: Columns) -> Columns:
    return columns


def decomposed(columns: Columns) -> Columns:
    return columns | {
        name: [cell and unicodedata.normalize("NFD", cell) for cell in columns[name]] for name in ("city", "y")
    }


def filled(value: Any, *names: str) -> Callable[[Columns], Columns]:
    return lambda columns: (
        columns | {name: [value if cell is None else cell for cell in columns[name]] for name in names}
    )


def with_index(name: str) -> Callable[[Columns], Columns]:
    return lambda columns: {name: list(np.random.default_rng(0).permutation(N).tolist()), **columns}


def reversed_columns(columns: Columns) -> Columns:
    return dict(reversed(columns.items()))


def number(form: str) -> Callable[[Any], str]:
    return lambda cell: "" if cell is None else format(cell, form)


def comma(cell: Any) -> str:
    return text(cell).replace(".", ",")


def european(cell: Any) -> str:
    return "" if cell is None else f"{cell:,.2f}".translate({44: ".", 46: ","})


def accounting(cell: Any) -> str:
    return "" if cell is None else f"({-cell})" if cell < 0 else str(cell)


def marked(mark: str) -> Callable[[Any], str]:
    return lambda cell: mark if cell is None else text(cell)


LARGE, VIEW = pyarrow.large_string(), pyarrow.string_view()
PANDAS = {b"pandas": b'{"index_columns": ["row"], "columns": []}'}
CSVS = [
    Form("semicolons", csv(";")),
    Form("tabs", csv("\t")),
    Form("pipes", csv("|")),
    Form("CRLF", csv(end="\r\n")),
    Form("quotes", csv(quote=True)),
    Form("byte order mark", csv(head="\ufeff")),
    Form("UTF-16", csv(encoding="utf-16")),
    Form("windows-1252", csv(encoding="windows-1252")),
    Form("line for Excel", csv(";", head="sep=;\n")),
    Form("decimal commas", csv(";", load=comma, size=comma)),
    Form("decimal commas and points between thousands", csv(";", load=european, size=european)),
    Form("commas between thousands", csv(load=number(",.2f"), size=number(",.2f"))),
    Form("spaces between thousands", csv(load=lambda cell: number(",.2f")(cell).replace(",", " "))),
    Form("exponents", csv(load=number(".6e"), size=number(".6e"))),
    Form("zeros at the end", csv(load=number(".4f"), size=number(".4f"))),
    Form("plus signs", csv(load=number("+"), size=number("+"))),
    Form(
        "minus signs of typesetting",
        csv(load=lambda cell: text(cell).replace("-", "\u2212"), size=lambda cell: text(cell).replace("-", "\u2212")),
    ),
    Form("accounting brackets", csv(load=accounting, size=accounting)),
    Form("unit", csv(load=lambda cell: "" if cell is None else f"{cell} °C", size=lambda cell: f"{cell} mm")),
    Form(
        "spaces around cells",
        csv(load=lambda cell: f" {text(cell)} ", city=lambda cell: f" {text(cell)}  ", y=lambda cell: f"{cell} "),
    ),
    Form("codes with a point", csv(code=lambda cell: f"{cell}.0")),
    Form("capital truth values", csv(good=lambda cell: str(cell).upper())),
    Form("zero-width spaces", csv(city=lambda cell: f"\u200b{text(cell)}", y=lambda cell: f"{cell}\ufeff")),
    *(
        Form(f"{mark} where there is no number", csv(load=marked(mark)))
        for mark in ("NA", "NaN", "NULL", "?", "-", "#N/D", "n.d.", "#DIV/0!")
    ),
    Form("cells that the job calls missing", changed(filled(-999, "load"), csv_of), {"missing": [-999]}),
    Form("words that the job calls missing", csv(load=marked("gone"), city=marked("gone")), {"missing": "gone"}),
    Form("decomposed", changed(decomposed, csv_of)),
    Form("columns in another order", changed(reversed_columns, csv_of)),
    Form("Unnamed: 0", changed(with_index("Unnamed: 0"), csv_of)),
    Form("ISO times with a T", csv(when=lambda cell: cell.isoformat())),
    Form(
        "dates with a form", csv(when=lambda cell: cell.strftime("%d.%m.%Y %H:%M")), {"date_format": "%d.%m.%Y %H:%M"}
    ),
    Form(
        "years of two digits", csv(when=lambda cell: cell.strftime("%d.%m.%y %H:%M")), {"date_format": "%d.%m.%y %H:%M"}
    ),
]
JSONLS = [
    Form("objects", changed(same, jsonl_of)),
    Form("objects with keys in another order", changed(reversed_columns, jsonl_of)),
    Form("decomposed objects", changed(decomposed, jsonl_of)),
    Form(
        "objects with words that the job calls missing",
        changed(filled("gone", "city"), jsonl_of),
        {"missing": ["gone"]},
    ),
]
PARQUETS = [
    Form("string", changed(same, parquet_of())),
    Form("pandas 3", changed(same, parquet_of(PANDAS, city=LARGE, y=LARGE))),
    Form(
        "polars",
        changed(
            same,
            parquet_of(
                None, {"compression": "zstd", "row_group_size": 16}, city=LARGE, y=LARGE, when=pyarrow.timestamp("us")
            ),
        ),
    ),
    Form("string view", changed(same, parquet_of(city=VIEW, y=VIEW))),
    Form("dictionaries", changed(same, dictionary)),
    Form("decomposed strings", changed(decomposed, parquet_of())),
    Form("row groups", changed(same, parquet_of(None, {"row_group_size": 7}))),
    Form("columns in another order in Parquet", changed(reversed_columns, parquet_of())),
    Form("index of pandas without a name", changed(with_index("__index_level_0__"), parquet_of())),
    Form("index of pandas with a name", changed(with_index("row"), parquet_of(PANDAS))),
    *(Form(f"times in {unit}", changed(same, parquet_of(when=pyarrow.timestamp(unit)))) for unit in ("s", "ms", "ns")),
    Form("float32", changed(same, parquet_of(load=pyarrow.float32(), size=pyarrow.float32()))),
    Form(
        "decimals",
        changed(lambda c: c | {"load": [v if v is None else Decimal(str(v)) for v in c["load"]]}, parquet_of()),
    ),
    *(
        Form(f"codes in {kind}", changed(same, parquet_of(code=kind)))
        for kind in (pyarrow.int8(), pyarrow.uint64(), pyarrow.float64())
    ),
    Form("codes as text", changed(lambda c: c | {"code": list(map(str, c["code"]))}, parquet_of())),
    Form(
        "codes as text with a point",
        changed(lambda c: c | {"code": [f"{v}.0" for v in c["code"]]}, parquet_of(code=LARGE)),
    ),
    Form("truth values as numbers", changed(lambda c: c | {"good": list(map(int, c["good"]))}, parquet_of())),
    Form("times as text", changed(lambda c: c | {"when": list(map(str, c["when"]))}, parquet_of(when=LARGE))),
    Form(
        "cells that the job calls missing in Parquet",
        changed(filled(-999.0, "load"), parquet_of()),
        {"missing": ["-999"]},
    ),
]
FORMS = {
    form.name: (form, suffix)
    for forms, suffix in ((CSVS, ".csv"), (JSONLS, ".jsonl"), (PARQUETS, ".parquet"))
    for form in forms
}
FORMS["tabs"] = (FORMS["tabs"][0], ".tsv")
FORMS["Arrow stream"] = (Form("Arrow stream", changed(same, arrow)), ".arrow")
