"""The same rows in another form give the same model, or are refused; and `predict` gives what `evaluate` scores."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import ipc, parquet
from torch import nn

from runtime.data import load_new
from runtime.data.dataset import Dataset, Head
from runtime.data.load import load
from runtime.errors import DataError
from runtime.inference import predictions
from runtime.job import JOBS
from runtime.models import forward
from runtime.training.evaluation.metrics import MetricAccumulator
from tests import trained

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
OPTIONS: dict[str, Any] = {"categorical": ["code"], "dates": {"when": ["year", "month", "weekday", "hour"]}}
TASKS = {"classification": ("y", ["size"]), "regression": ("size", ["y"])}


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


class Fixed(nn.Module):
    """A network with weights that depend on nothing but its shape."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(0)
        width = sum(1 + number["missing"] for number in data.preprocessing["numeric"])
        outputs = data.heads[""].outputs
        self.weights = torch.randn(width, outputs, generator=drawn)
        self.tables = [torch.randn(99, outputs, generator=drawn) for _ in data.preprocessing["categorical"]]

    def forward(self, numbers: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        embedded = [table[places[:, i].long()] for i, table in enumerate(self.tables)]
        return numbers @ self.weights + torch.stack(embedded).sum(0)


def dataset(path: Path, task: str, options: Mapping[str, Any]) -> Dataset:
    target, others = TASKS[task]
    ignore = [*others, *options.get("ignore", ())]
    held = path.parent / "held.csv"
    csv()(held)
    data = {"train": str(path), "target": target, "validation": 0.2, **OPTIONS, **options, "ignore": ignore}
    return load(JOBS[f"tabular-{task}"].model_validate({"name": "t", "task": f"tabular-{task}", "data": data}))


@cache
def reference(folder: Path, task: str) -> tuple[Dataset, Path]:
    path = folder / "reference.csv"
    csv()(path)
    return dataset(path, task, {}), path


def by_column(data: Dataset, split: Any) -> dict[str, Any]:
    """What the network gets of all rows, by the column that it is made of."""
    numbers, places = split.gather(np.arange(len(split)))
    found, start = {}, 0
    for column in data.preprocessing["numeric"]:
        end = start + 1 + column["missing"]
        found[column["name"]] = numbers[:, start:end].tolist()
        start = end
    for index, column in enumerate(data.preprocessing["categorical"]):
        found[column["name"]] = places[:, index].tolist()
    return found


def columns_of(data: Dataset) -> dict[str, Any]:
    return {column["name"]: column for kind in ("numeric", "categorical") for column in data.preprocessing[kind]}


def read(data: Dataset, path: Path, *, labelled: bool) -> Any:
    return load_new.read([path], data.preprocessing, data.heads, labelled=labelled)


def targets(new: Any) -> list[Any]:
    return list(new.split.targets[""].tolist())


def check_scores(data: Dataset, path: Path) -> None:
    """Predictions of the file without its targets have the score that the file with its targets gets."""
    network, head = Fixed(data), data.heads[""]
    new, labelled = read(data, path, labelled=False), read(data, path, labelled=True)
    device = torch.device("cpu")
    outputs = list(forward.outputs(network, [""], new.split, new.prepare, device))
    answers = [answer[""]["prediction"] for _, answer in predictions.of(outputs, data.heads, new.split)]
    tally = MetricAccumulator(data.heads, None)
    for ids, found in forward.outputs(network, [""], labelled.split, labelled.prepare, device):
        tally.add(found, {"": labelled.split.targets[""][torch.from_numpy(ids)]})
    truth = targets(labelled)
    score = scored(head, json.loads(json.dumps(answers)), truth)
    assert score == pytest.approx(tally.metrics("")["accuracy" if head.classes else "mae"], rel=1e-6)


def scored(head: Head, answers: list[Any], truth: list[Any]) -> float:
    if head.classes:
        return float(np.mean([head.classes[index] == answer for index, answer in zip(truth, answers, strict=True)]))
    values = np.array(truth, np.float64)[:, 0] * head.std[0] + head.mean[0]
    return float(np.abs(values - np.array(answers)).mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forms")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", FORMS)
def test_another_form_of_the_same_rows_is_the_same_model(folder: Path, tmp_path: Path, name: str, task: str) -> None:
    form, suffix = FORMS[name]
    path = tmp_path / f"other{suffix}"
    form.write(path)
    one, first = reference(folder, task)
    other = dataset(path, task, form.options)
    assert columns_of(other) == columns_of(one)
    assert other.heads == one.heads
    assert by_column(other, other.train) == by_column(one, one.train)
    assert by_column(other, other.validation) == by_column(one, one.validation)
    assert other.train.targets[""].tolist() == one.train.targets[""].tolist()
    expected = read(one, first, labelled=True)
    again = read(other, path, labelled=True)
    assert by_column(other, again.split) == by_column(one, expected.split)
    assert targets(again) == targets(expected)
    if not form.options:  # which belong to the model
        crossed = read(one, path, labelled=True)
        assert by_column(one, crossed.split) == by_column(one, expected.split)
        assert targets(crossed) == targets(expected)
        check_scores(one, path)
    if not name.startswith(("unit", "dates with", "years of")):
        back = read(other, first, labelled=True)
        assert by_column(other, back.split) == by_column(one, expected.split)
    check_scores(other, path)


@pytest.mark.parametrize("name", ["decimal commas", "accounting brackets", "pandas 3", "objects"])
def test_training_on_another_form_gives_the_same_weights(tmp_path: Path, name: str) -> None:
    form, suffix = FORMS[name]
    weights = []
    for place, end, write in ((tmp_path / "one", ".csv", csv()), (tmp_path / "other", suffix, form.write)):
        place.mkdir()
        data = f"{{train: train{end}, target: y, validation: 0.2, categorical: code, ignore: size, dates: {{when: [year, month, weekday, hour]}}}}"
        spec = f"task: tabular-classification\ndata: {data}\nmodel: {{hidden: [8]}}\n"
        done = trained.trained(trained.Case(partial(write_into, write, f"train{end}"), end, spec), place)
        weights.append({key: value.clone() for key, value in done.model.state_dict().items()})
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def write_into(write: Callable[[Path], object], name: str, folder: Path) -> None:
    write(folder / name)


def test_there_are_many_forms() -> None:
    assert len(FORMS) >= 60


@pytest.mark.parametrize("task", TASKS)
def test_rows_in_another_order_are_the_same_rows(folder: Path, tmp_path: Path, task: str) -> None:
    one, first = reference(folder, task)
    path = tmp_path / "other.csv"
    csv_of(path, {name: cells[::-1] for name, cells in ROWS.items()})
    expected, other = (
        by_column(one, read(one, first, labelled=True).split),
        by_column(one, read(one, path, labelled=True).split),
    )
    assert {name: cells[::-1] for name, cells in other.items()} == expected


def ambiguous(cell: Any) -> str:
    return "" if cell is None else f"{abs(int(cell)) % 900 + 100},{abs(int(cell)) % 900 + 100}"


REFUSED = {
    "numbers as text": (
        ".parquet",
        changed(lambda c: c | {"load": [None if v is None else str(v) for v in c["load"]]}, parquet_of()),
        "are numbers written as text",
    ),
    "numbers with words": (
        ".csv",
        csv(load=lambda cell: "unbekannt" if cell == ROWS["load"][0] else text(cell)),
        "are numbers but",
    ),
    "commas that can be two things": (".csv", csv(";", load=ambiguous, size=lambda cell: str(int(cell))), "can be"),
    "percent and none": (
        ".csv",
        csv(load=lambda cell: "" if cell is None else f"{cell}%" if cell > -1500 else str(cell)),
        "is in percent",
    ),
    "a unit and none": (
        ".csv",
        csv(load=lambda cell: "" if cell is None else f"{cell} mm" if cell < 1800 else str(cell)),
        "is in mm",
    ),
    "years of two digits of two centuries": (
        ".csv",
        csv(when=lambda cell: f"{cell:%d.%m.}{cell.day + 50}"),
        "two centuries",
    ),
    "two spellings of a column": (
        ".csv",
        changed(lambda c: c | {"café": c["code"], "cafe\u0301": c["code"]}, csv_of),
        "several columns named",
    ),
    "times with and without a zone": (
        ".csv",
        csv(when=lambda cell: f"{cell}Z" if cell.day % 2 else str(cell)),
        "cannot be used",
    ),
    "days first": (".csv", csv(when=lambda cell: f"{cell:%d/%m/%Y}"), "dates as"),
    "fractions as classes": (
        ".parquet",
        changed(lambda c: c | {"y": [0.5 * (v == "no") for v in c["y"]]}, parquet_of()),
        "has fractions",
    ),
    "row numbers": (".csv", changed(lambda c: {"id": list(range(N)), **c}, csv_of), "is a row number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_forms_that_are_not_clear_are_refused(tmp_path: Path, case: str) -> None:
    suffix, write, reason = REFUSED[case]
    path = tmp_path / f"other{suffix}"
    write(path)
    options = {"date_format": "%d.%m.%y"} if "centuries" in case else {}
    with pytest.raises(DataError, match=reason):
        dataset(path, "classification", options)
