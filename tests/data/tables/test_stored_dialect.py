"""The dialect of the training file is stored with the model, and decides where a new file does not."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain.data import load_data
from drivetrain.data.dataset import InputRecord
from drivetrain.data.formats import table_file
from drivetrain.data.formats.csv_dialect import CsvFiles, Dialect
from drivetrain.data.load_data import load
from drivetrain.tasks import JOBS
from tests.messages import says_only


def european(folder: Path, name: str, content: Callable[[int], list[object]] | None = None, **options: Any) -> Path:
    """Rows of numbers, categories and a class in the dialect of a spreadsheet in Spanish."""
    path = folder / name
    with path.open("w", newline="", encoding=options.pop("encoding", "cp1252")) as file:
        writer = csv.writer(file, **{"delimiter": ";", **options})
        writer.writerow(["carga", "año", "máquina", "falla"])
        for i in range(60):
            row = [f"{i % 7},{i % 9}5", 2000 + i % 20, ["fábrica", "horno", "grúa"][i % 3], ["sí", "no"][i % 2]]
            writer.writerow(content(i) if content else row)
    return path


def table_job(train: Path, **data: Any) -> Any:
    spec = {"name": "a", "task": "tabular-classification", "data": {"train": str(train), "target": "falla", **data}}
    return JOBS["tabular-classification"].model_validate(spec)


def test_the_dialect_is_stored_with_the_model_and_decides_for_new_files(tmp_path: Path) -> None:
    dataset = load(
        table_job(european(tmp_path, "train.csv"), validation=str(european(tmp_path, "held.csv", encoding="utf-8")))
    )
    assert dataset.preprocessing["csv"] == {"delimiter": "semicolon", "encoding": "windows-1252", "decimal": "comma"}
    assert says_only(dataset.notes, "semicolons-decimal-commas", "train.csv", "windows-1252")
    assert says_only(dataset.notes, "semicolons-decimal-commas-2", "held.csv")
    assert [number["name"] for number in dataset.preprocessing["numeric"]] == ["carga", "año"]
    new = tmp_path / "new.csv"
    new.write_text("carga;año;máquina\n1.234;2001;horno\n")
    read = load_data.load_new([new], dataset.preprocessing, dataset.heads, labelled=False)
    other = load_data.load_new([new], dataset.preprocessing, dataset.heads, labelled=False, csv={"decimal": "point"})
    mean, std = (dataset.preprocessing["numeric"][0][key] for key in ("mean", "std"))
    for samples, value in ((read, 1234), (other, 1.234)):
        assert samples.split.gather(np.array([0]))[0][0, 0].item() == pytest.approx((value - mean) / std, rel=1e-5)
    new.write_text("carga,año,máquina\n1.5,2001,horno\n")
    english = load_data.load_new([new], dataset.preprocessing, dataset.heads, labelled=False)
    assert english.split.gather(np.array([0]))[0][0, 0].item() == pytest.approx((1.5 - mean) / std, rel=1e-5)


def test_the_usual_form_is_not_stored(tmp_path: Path) -> None:
    """A model of an older version has no such key, and is compared with the data read again."""
    path = tmp_path / "a.csv"
    path.write_text("x,falla\n" + "1.5,a\n2.5,b\n" * 20)
    dataset = load(table_job(path))
    assert "csv" not in dataset.preprocessing
    assert not [note for note in dataset.notes if note.startswith("a.csv")]


def test_a_resumed_run_reads_the_same_dialect(tmp_path: Path) -> None:
    job = table_job(european(tmp_path, "train.csv"), csv={"decimal": "comma"})
    first = load(job)
    resumed_data = load(job, InputRecord(first.preprocessing, first.heads))
    assert resumed_data.preprocessing == first.preprocessing


def test_series_and_texts_in_another_dialect(tmp_path: Path) -> None:
    rows = [f"{i};{i % 7},5;{'ab'[i // 50 % 2]}" for i in range(400)]
    (tmp_path / "s.csv").write_bytes("\r\n".join(["tiempo;presión;estado", *rows]).encode("cp1252"))
    data = {"train": str(tmp_path / "s.csv"), "time": "tiempo", "label": "estado", "window": 10, "validation": 0.3}
    job = {"name": "a", "task": "series-classification", "data": data}
    series_data = load(JOBS["series-classification"].model_validate(job))
    assert (series_data.preprocessing["features"], series_data.preprocessing["csv"]["decimal"]) == (
        ["presión"],
        "comma",
    )
    texts = [f"La válvula {i} está rota\t{'sí' if i % 2 else 'no'}" for i in range(60)]
    (tmp_path / "t.csv").write_bytes("\r\n".join(["descripción\turgente", *texts]).encode("utf-16"))
    data = {"train": str(tmp_path / "t.csv"), "text": "descripción", "labels": "urgente"}
    text_data = load(
        JOBS["text-classification"].model_validate({"name": "a", "task": "text-classification", "data": data})
    )
    assert text_data.heads[""].classes == ("no", "sí")
    assert text_data.train.title(0).startswith("t.csv row ")
    assert "válvula" in text_data.train.title(0)


def test_a_category_with_decimal_commas_is_the_same_one_in_new_files(tmp_path: Path) -> None:
    """Its texts were stored with decimal points, and all of them counted as unknown in an evaluation."""
    train = tmp_path / "train.csv"
    train.write_text("x;size;falla\n" + "96,5;1,5;sí\n89,25;2,5;no\n25,75;large;sí\n" * 20)
    dataset = load(table_job(train))
    assert dataset.preprocessing["categorical"][0]["values"] == ["1,5", "2,5", "large"]
    new = load_data.load_new([train], dataset.preprocessing, dataset.heads, labelled=True)
    assert not [note for note in new.notes if "unknown" in note]


def test_a_new_file_is_not_read_as_the_utf_16_of_training(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("a,b\n1,año nuevo\n".encode("cp1252"))
    read = table_file.read(path, "new", csv=CsvFiles(usual=Dialect("comma", "utf-16-le")))
    assert read.to_pydict() == {"a": [1], "b": ["año nuevo"]}
