"""The same rows in another form give the same model, or are refused; and `predict` gives what `evaluate` scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset, Head
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.inference import predictions
from drivetrain.models import forward
from drivetrain.tasks import JOBS
from drivetrain.training.evaluation.metrics import MetricAccumulator
from tests import task_cases
from tests.data.tables.table_forms import (
    FORMS,
    ROWS,
    N,
    format_cell,
    make_csv_writer,
    make_parquet_writer,
    write_changed,
    write_csv,
)

OPTIONS: dict[str, Any] = {"categorical": ["code"], "dates": {"when": ["year", "month", "weekday", "hour"]}}
TASKS = {"classification": ("y", ["size"]), "regression": ("size", ["y"])}

# Those that write the target of the regression in another way, and one of each kind of file.
NUMBER_FORMS = (
    "decimal commas",
    "decimal commas and points between thousands",
    "commas between thousands",
    "exponents",
    "minus signs of typesetting",
    "accounting brackets",
    "currencies",
    "float32",
    "objects",
    "polars",
    "Arrow stream",
)


class FixedNetwork(nn.Module):
    """A network with weights that depend on nothing but its shape."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        width = sum(1 + number["missing"] for number in data.preprocessing["numeric"])
        outputs = data.heads[""].outputs
        self.weights = torch.randn(width, outputs, generator=generator)
        self.tables = [torch.randn(99, outputs, generator=generator) for _ in data.preprocessing["categorical"]]

    def forward(self, numbers: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        embedded = [table[places[:, i].long()] for i, table in enumerate(self.tables)]
        return numbers @ self.weights + torch.stack(embedded).sum(0)


def dataset(path: Path, task: str, options: Mapping[str, Any]) -> Dataset:
    target, other_targets = TASKS[task]
    ignore = [*other_targets, *options.get("ignore", ())]
    validation_path = path.parent / "held.csv"
    make_csv_writer()(validation_path)
    data = {"train": str(path), "target": target, "validation": 0.2, **OPTIONS, **options, "ignore": ignore}
    return load(JOBS[f"tabular-{task}"].model_validate({"name": "t", "task": f"tabular-{task}", "data": data}))


@cache
def reference(folder: Path, task: str) -> tuple[Dataset, Path]:
    path = folder / "reference.csv"
    make_csv_writer()(path)
    return dataset(path, task, {}), path


def by_column(data: Dataset, split: Any) -> dict[str, Any]:
    """What the network gets of all rows, by the column that it is made of."""
    numbers, places = split.gather(np.arange(len(split)))
    values_by_column, start = {}, 0
    for column in data.preprocessing["numeric"]:
        end = start + 1 + column["missing"]
        values_by_column[column["name"]] = numbers[:, start:end].tolist()
        start = end
    for index, column in enumerate(data.preprocessing["categorical"]):
        values_by_column[column["name"]] = places[:, index].tolist()
    return values_by_column


def columns_of(data: Dataset) -> dict[str, Any]:
    return {column["name"]: column for kind in ("numeric", "categorical") for column in data.preprocessing[kind]}


def read(data: Dataset, path: Path, *, labelled: bool) -> Any:
    return load_data.load_new([path], data.preprocessing, data.heads, labelled=labelled)


def targets(new: Any) -> list[Any]:
    return list(new.split.targets[""].tolist())


def check_scores(data: Dataset, path: Path) -> None:
    """Predictions of the file without its targets have the score that the file with its targets gets."""
    network, head = FixedNetwork(data), data.heads[""]
    new, labelled = read(data, path, labelled=False), read(data, path, labelled=True)
    device = torch.device("cpu")
    outputs = list(forward.compute_outputs(network, [""], new.split, new.prepare, device))
    answers = [answer[""]["prediction"] for _, answer in predictions.compute_answers(outputs, data.heads, new.split)]
    tally = MetricAccumulator(data.heads, None)
    for ids, batch_outputs in forward.compute_outputs(network, [""], labelled.split, labelled.prepare, device):
        tally.add(batch_outputs, {"": labelled.split.targets[""][torch.from_numpy(ids)]})
    truth = targets(labelled)
    score = compute_score(head, json.loads(json.dumps(answers)), truth)
    assert score == pytest.approx(tally.metrics("")["accuracy" if head.classes else "mae"], rel=1e-6)


def compute_score(head: Head, answers: list[Any], truth: list[Any]) -> float:
    if head.classes:
        return float(np.mean([head.classes[index] == answer for index, answer in zip(truth, answers, strict=True)]))
    values = np.array(truth, np.float64)[:, 0] * head.std[0] + head.mean[0]
    return float(np.abs(values - np.array(answers)).mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forms")


@pytest.mark.parametrize(
    ("name", "task"), [(name, "regression" if name in NUMBER_FORMS else "classification") for name in FORMS]
)
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
    other_rows = read(other, path, labelled=True)
    assert by_column(other, other_rows.split) == by_column(one, expected.split)
    assert targets(other_rows) == targets(expected)
    if not form.options:  # which belong to the model
        crossed_rows = read(one, path, labelled=True)
        assert by_column(one, crossed_rows.split) == by_column(one, expected.split)
        assert targets(crossed_rows) == targets(expected)
        check_scores(one, path)
    if not name.startswith(("currencies", "dates with", "years of")):
        back = read(other, first, labelled=True)
        assert by_column(other, back.split) == by_column(one, expected.split)
    check_scores(other, path)


@pytest.mark.parametrize("name", ["decimal commas", "accounting brackets", "pandas 3", "objects"])
def test_training_on_another_form_gives_the_same_weights(tmp_path: Path, name: str) -> None:
    form, suffix = FORMS[name]
    weights = []
    for run_folder, end, write in (
        (tmp_path / "one", ".csv", make_csv_writer()),
        (tmp_path / "other", suffix, form.write),
    ):
        run_folder.mkdir()
        data = f"{{train: train{end}, target: y, validation: 0.2, categorical: code, ignore: size, dates: {{when: [year, month, weekday, hour]}}}}"
        spec = f"task: tabular-classification\ndata: {data}\nmodel: {{hidden: [8]}}\n"
        training = task_cases.train_case(
            task_cases.Case(partial(write_into, write, f"train{end}"), end, spec), run_folder
        )
        weights.append({key: value.clone() for key, value in training.model.state_dict().items()})
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def write_into(write: Callable[[Path], object], name: str, folder: Path) -> None:
    write(folder / name)


@pytest.mark.parametrize("task", TASKS)
def test_rows_in_another_order_are_the_same_rows(folder: Path, tmp_path: Path, task: str) -> None:
    one, first = reference(folder, task)
    path = tmp_path / "other.csv"
    write_csv(path, {name: cells[::-1] for name, cells in ROWS.items()})
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
        write_changed(
            lambda c: c | {"load": [None if v is None else str(v) for v in c["load"]]}, make_parquet_writer()
        ),
        "are numbers written as text",
    ),
    "numbers with words": (
        ".csv",
        make_csv_writer(load=lambda cell: "unbekannt" if cell == ROWS["load"][0] else format_cell(cell)),
        "are numbers but",
    ),
    "commas that can be two things": (
        ".csv",
        make_csv_writer(";", load=ambiguous, size=lambda cell: str(int(cell))),
        "can be",
    ),
    "percent and none": (
        ".csv",
        make_csv_writer(load=lambda cell: "" if cell is None else f"{cell}%" if cell > -1500 else str(cell)),
        "is in percent",
    ),
    "a unit": (".csv", make_csv_writer(load=lambda cell: "" if cell is None else f"{cell} mm"), "100% hold digits"),
    "years of two digits of two centuries": (
        ".csv",
        make_csv_writer(when=lambda cell: f"{cell:%d.%m.}{cell.day + 50}"),
        "two centuries",
    ),
    "two spellings of a column": (
        ".csv",
        write_changed(lambda c: c | {"café": c["code"], "cafe\u0301": c["code"]}, write_csv),
        "several columns named",
    ),
    "times with and without a zone": (
        ".csv",
        make_csv_writer(when=lambda cell: f"{cell}Z" if cell.day % 2 else str(cell)),
        "cannot be used",
    ),
    "days or months first": (
        ".csv",
        make_csv_writer(when=lambda cell: f"{min(cell.day, 12)}/{cell:%m/%Y}"),
        "%d/%m/%Y or",
    ),
    "fractions as classes": (
        ".parquet",
        write_changed(lambda c: c | {"y": [0.5 * (v == "no") for v in c["y"]]}, make_parquet_writer()),
        "has fractions",
    ),
    "row numbers": (".csv", write_changed(lambda c: {"id": list(range(N)), **c}, write_csv), "is a row number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_forms_that_are_not_clear_are_refused(tmp_path: Path, case: str) -> None:
    suffix, write, reason = REFUSED[case]
    path = tmp_path / f"other{suffix}"
    write(path)
    options = {"date_format": "%d.%m.%y"} if "centuries" in case else {}
    with pytest.raises(DataError, match=reason):
        dataset(path, "classification", options)
