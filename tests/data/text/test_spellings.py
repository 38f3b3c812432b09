"""Labels and texts are the same in every spelling of Unicode, almost equal labels are listed."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.job_spec import load_job as job_spec
from tests.axes import each_once

TEXTS = [f"la máquina {n % 7} perdió presión también" for n in range(60)]
LABELS = ["avería" if n % 3 else "sin avería" for n in range(60)]
SPELLINGS = {
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "zero-width": lambda text: f"{text}\u200b",
    "byte order mark": lambda text: f"\ufeff{text}",
}


def store(path: Path, texts: list[str], labels: list[str]) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows), encoding="utf-8")
    return path


def dataset(folder: Path, train: str, labels: str = "label", data_options: str = "") -> Any:
    spec = folder / "job.yaml"
    data = f"{{train: {train}, text: text, labels: {labels}{data_options}}}"
    spec.write_text(
        f"name: t\ntask: text-classification\ndata: {data}\nmodel: {{name: encoder, layers: 1, width: 16, heads: 2}}\n"
    )
    return load(job_spec.load(spec))


def tokens(split: Any) -> list[Any]:
    return [part.tolist() for part in split.gather(np.arange(len(split)))]


@pytest.mark.parametrize(("suffix", "case"), each_once([".csv", ".jsonl", ".parquet"], SPELLINGS))
def test_labels_in_another_spelling_are_the_same_classes(tmp_path: Path, case: str, suffix: str) -> None:
    store(tmp_path / "a.csv", TEXTS, LABELS)
    other = store(
        tmp_path / f"b{suffix}", TEXTS, [SPELLINGS[case](label) if n % 2 else label for n, label in enumerate(LABELS)]
    )
    one, two = dataset(tmp_path, "a.csv"), dataset(tmp_path, other.name)
    assert two.heads[""].classes == one.heads[""].classes == ("avería", "sin avería")
    assert two.train.targets[""].tolist() == one.train.targets[""].tolist()
    new = load_data.load_new([other], one.preprocessing, one.heads, labelled=True)
    assert new.split.targets[""].tolist() == [one.heads[""].classes.index(label) for label in LABELS]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_decomposed_texts_have_the_same_tokens(tmp_path: Path, suffix: str) -> None:
    store(tmp_path / "a.csv", TEXTS, LABELS)
    other = store(tmp_path / f"b{suffix}", list(map(SPELLINGS["decomposed"], TEXTS)), LABELS)
    one, two = dataset(tmp_path, "a.csv"), dataset(tmp_path, other.name)
    assert two.preprocessing["tokenizer"] == one.preprocessing["tokenizer"]
    assert tokens(two.train) == tokens(one.train)
    new = [
        load_data.load_new([path], one.preprocessing, one.heads, labelled=False).split
        for path in (tmp_path / "a.csv", other)
    ]
    assert tokens(new[0]) == tokens(new[1])


def test_labels_that_may_be_the_same_are_listed(tmp_path: Path) -> None:
    store(tmp_path / "a.csv", TEXTS, [("avería", "Averia", "sin-uso", "sin uso", "ok")[n % 5] for n in range(60)])
    same = '"label": spellings that are probably the same, and are learned apart: Averia/avería, sin uso/sin-uso'
    assert same in dataset(tmp_path, "a.csv").notes


@pytest.mark.parametrize("labels", ["{averi\u0301a: 0.7, b: 0.3}", "[averi\u0301a, b]"])
def test_a_label_column_in_another_spelling(tmp_path: Path, labels: str) -> None:
    rows = "".join(f"{text},{label},{n % 2}\n" for n, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)))
    (tmp_path / "a.csv").write_text(f"text,avería,b\n{rows}", encoding="utf-8")
    assert list(dataset(tmp_path, "a.csv", labels).heads) == ["avería", "b"]


def test_cells_that_the_job_calls_missing_are_no_texts_and_no_labels(tmp_path: Path) -> None:
    store(tmp_path / "a.csv", ["?", *TEXTS[1:]], [LABELS[0], "?", *LABELS[2:]])
    data = dataset(tmp_path, "a.csv", data_options=', missing: "?", bad_samples: 0.1')
    assert data.heads[""].classes == ("avería", "sin avería")
    assert len(data.train) + len(data.validation) == 58
