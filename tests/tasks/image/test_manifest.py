"""Manifests: a CSV or Parquet file with a path and a label in each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.tasks.image.job import ImageClassificationJob, ImageJob
from tests.messages import saying, says_only

torch.set_num_threads(1)
QUOTED = '"a, b"'


def job(train: Path, **data: object) -> ImageJob:
    spec = {"name": "t", "task": "image-classification", "data": {"train": str(train), "validation": 0.25, **data}}
    return ImageClassificationJob.model_validate(spec)


def images(folder: Path, count: int = 8) -> list[str]:
    (folder / "pictures").mkdir()
    for i in range(count):
        Image.new("L", (16, 16), 10 * i).save(folder / "pictures" / f"{i}.png")
    return [f"pictures/{i}.png" for i in range(count)]


def rows(folder: Path, labels: str = "yes no", header: str = "path,label") -> str:
    names = labels.split()
    return "\n".join([header, *(f"{path},{names[i % len(names)]}" for i, path in enumerate(images(folder)))]) + "\n"


def classes(image_job: ImageJob) -> dict[str, str]:
    """Label by file name, as the data set has it."""
    data = load(image_job)
    label_by_name = {}
    for split in (data.train, data.validation):
        for i in range(len(split)):
            label_by_name[Path(split.title(i)).name] = data.heads[""].classes[int(split.targets[""][i])]
    return label_by_name


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_paths_are_relative_to_the_manifest(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"list{suffix}"
    text = rows(tmp_path)
    if suffix == ".parquet":
        lines = [line.split(",") for line in text.splitlines()[1:]]
        parquet.write_table(arrow.table({"path": [a for a, _ in lines], "label": [b for _, b in lines]}), file)
    else:
        file.write_text(text)
    assert classes(job(file)) == {f"{i}.png": ("yes", "no")[i % 2] for i in range(8)}


def test_other_columns_order_quotes_spaces_and_a_mark_at_the_start(tmp_path: Path) -> None:
    paths = images(tmp_path)
    paths[0] = str(tmp_path / paths[0])
    lines = ["\ufeffkind,n,file", *(f"{' x ' if i % 2 else QUOTED},1,{path}" for i, path in enumerate(paths))]
    (tmp_path / "list.csv").write_text("\n".join(lines), encoding="utf-8")
    expected = {f"{i}.png": "x" if i % 2 else "a, b" for i in range(8)}
    assert classes(job(tmp_path / "list.csv", path_column="file", label_column="kind")) == expected


@pytest.mark.parametrize("labels", ["007 7", "NA null", "1e3 1000", "true false", "ñandú ¿qué?"])
def test_labels_of_a_csv_stay_as_they_are_written(tmp_path: Path, labels: str) -> None:
    (tmp_path / "list.csv").write_text(rows(tmp_path, labels), encoding="utf-8")
    assert set(classes(job(tmp_path / "list.csv")).values()) == set(labels.split())


@pytest.mark.parametrize("labels", ["1.0 2", "1.0 2.0", "True false"])
def test_labels_have_one_spelling(tmp_path: Path, labels: str) -> None:
    """As in tables: a whole number as programs write it in a column with gaps is the same number."""
    first, second = labels.lower().replace(".0", "").split()
    header, *lines = rows(tmp_path, labels).splitlines()
    lines += [f"{line.partition(',')[0]},{label}" for line, label in zip(lines, [first, second] * 4, strict=True)]
    (tmp_path / "list.csv").write_text("\n".join([header, *lines]), encoding="utf-8")
    assert set(load(job(tmp_path / "list.csv")).heads[""].classes) == {first, second}


def test_several_labels_in_a_cell_have_one_spelling(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(rows(tmp_path, "1.0|2 1 2.0 3"), encoding="utf-8")
    data = load(job(tmp_path / "list.csv", multi_label=True, validation=0.5))
    assert data.heads[""].classes == ("1", "2", "3")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (arrow.array([1, 2] * 4), {"1", "2"}),
        (arrow.array([1.0, 2.0] * 4), {"1", "2"}),
        (arrow.array([True, False] * 4), {"true", "false"}),
        (arrow.array(["a", "b"] * 4).dictionary_encode(), {"a", "b"}),
        (arrow.array(["a", "b"] * 4, arrow.large_string()), {"a", "b"}),
    ],
)
def test_types_of_labels_in_parquet(tmp_path: Path, values: Any, names: set[str]) -> None:
    parquet.write_table(arrow.table({"path": images(tmp_path), "label": values}), tmp_path / "list.parquet")
    assert set(classes(job(tmp_path / "list.parquet")).values()) == names


def columns(folder: Path, **values: Any) -> None:
    parquet.write_table(arrow.table(values), folder / "list.parquet")


CASES: dict[str, tuple[str, Any, str, str]] = {
    "missing column": ("csv", lambda d: rows(d, header="path,labels"), 'has no column "label"', 'mean "labels"?'),
    "missing both": ("csv", lambda d: rows(d, header="x,y"), 'has no column "path"', "its columns: x, y"),
    "no header": (
        "csv",
        lambda d: rows(d).partition("\n")[2],
        "seems to have no header",
        "a line with the names above",
    ),
    "duplicate header": ("csv", lambda d: "path,label,label\na,b,c\n", "several columns named label", "rename"),
    "empty file": ("csv", lambda d: "", "list.csv is empty", "check how the file was written"),
    "header only": ("csv", lambda d: "path,label\n", "list.csv has a header and no rows", "at least one row"),
    "blank lines": ("csv", lambda d: "\n\n", "list.csv has no rows", "a header and at least one row"),
    "all empty": ("csv", lambda d: "path,label\n,\n ,x\n", "no row with path and label (2 rows", "check how"),
    "ragged": ("csv", lambda d: rows(d) + "a,b,c\n", "row 9 (line 10): 3 cells, a,b,c", "put quotes around cells"),
    "cyrillic": ("csv", lambda d: rows(d, "да нет").encode("cp1251"), "encoding is not clear", "{encoding: NAME}"),
    "latin-1 header": ("csv", lambda d: "path,señal\na,b\n".encode("latin-1"), "its columns: path, señal", "label"),
    "a spreadsheet": ("xlsx", lambda d: "PK", "list.xlsx is an Excel file", "libreoffice --headless"),
    "empty label": (
        "csv",
        lambda d: rows(d) + "pictures/0.png,\n",
        "list.csv row 9 (line 10): label is empty",
        "1 of 9 samples",
    ),
    "empty path": ("csv", lambda d: rows(d) + ",yes\n", "list.csv row 9 (line 10): path is empty", "1 of 9 samples"),
    "missing file": ("csv", lambda d: rows(d) + "gone.png,yes\n", "gone.png: no such file or directory", "1 of 9"),
    "one class": ("csv", lambda d: rows(d, "yes"), "8 images of 1 class: yes", "add another class"),
    "other file": ("txt", lambda d: rows(d), "list.txt has an unknown file type", "a .csv, .tsv, .jsonl or .parquet"),
    "no table": (
        "parquet",
        lambda d: "PAR1 and no more",
        "is not a Parquet file, or is incomplete",
        "copy or write it",
    ),
    "empty parquet": ("parquet", lambda d: "", "list.parquet is empty", "check how the file was written"),
    "float label": ("parquet", lambda d: columns(d, path=["a", "b"], label=[0.5, 1.5]), "column", "is double"),
    "list path": ("parquet", lambda d: columns(d, path=[["a"]], label=["x"]), 'column "path" of', "is list<"),
    "null label": (
        "parquet",
        lambda d: columns(d, path=images(d), label=["a", "b", None, "a"] * 2),
        "list.parquet row 3: label is empty",
        "2 of 8 samples",
    ),
    "no labels": ("parquet", lambda d: columns(d, path=["a"], label=arrow.nulls(1)), "(1 rows in all)", "check how"),
    "parquet column": ("parquet", lambda d: columns(d, file=["a"], label=["x"]), 'has no column "path"', "file, label"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_manifests(tmp_path: Path, case: str) -> None:
    suffix, write, text, advice = CASES[case]
    content = write(tmp_path)
    if content is not None:
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / f"list.{suffix}").write_bytes(content)
    with pytest.raises(DataError) as error:
        load(job(tmp_path / f"list.{suffix}"))
    assert str(error.value).startswith(("data.train: ", "data.path_column: ", "data.label_column: "))
    assert text in str(error.value)
    assert advice in str(error.value)
    assert error.value.exit_code == 3


def test_empty_cells_within_the_budget_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(rows(tmp_path) + "pictures/0.png,\n,yes\n")
    data = load(job(tmp_path / "list.csv", bad_samples=0.2))
    assert says_only(data.notes, "samples-used-skipped-2", "data.train", 2, 10)
    assert f"left out: {tmp_path}/list.csv row 9 (line 10): label is empty" in data.notes
    assert len(data.train) + len(data.validation) == 8


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "list.csv").write_text(rows(tmp_path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"(?s)is a table, and pyarrow is not installed.*pip install pyarrow"):
        load(job(tmp_path / "list.csv"))


def test_a_library_that_does_not_fit_into_memory_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `ulimit -v` the advice was to install what is there."""
    import sys

    class Refuses:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "pyarrow":
                raise ImportError("libarrow.so: failed to map segment from shared object")

    (tmp_path / "list.csv").write_text(rows(tmp_path))
    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.setattr(sys, "meta_path", [Refuses, *sys.meta_path])
    with pytest.raises(DataError, check=saying("pyarrow-cannot-be-loaded", "libarrow.so")):
        load(job(tmp_path / "list.csv"))
