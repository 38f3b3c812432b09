"""One class, one category, one column, however its name is encoded; almost equal ones are listed."""

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
from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.system import spelling
from drivetrain.tasks import JOBS
from tests.axes import each_once
from tests.messages import get_message, saying, says_each

NFD = unicodedata.normalize("NFD", "avería")
SAME = {
    "decomposed": NFD,
    "zero-width space": "ave\u200bría",
    "byte order mark": "\ufeffavería",
    "soft hyphen": "ave\u00adría",
    "joiner at the end": "avería\u200d",
    "no-break space at the end": "avería\u00a0",
}


def dataset(folder: Path, columns: dict[str, list[Any]], name: str = "a.csv", **data: object) -> Dataset:
    write(folder / name, columns)
    keys = {"train": str(folder / name), "target": "y", "validation": 0.25, **data}
    return load(
        JOBS["tabular-classification"].model_validate({"name": "t", "task": "tabular-classification", "data": keys})
    )


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path)
        return
    if path.suffix == ".jsonl":
        lines = pyarrow.table(columns).to_pylist()
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return
    rows = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def new_rows(data: Dataset, path: Path, columns: dict[str, list[Any]]) -> tuple[list[Any], list[str]]:
    """Classes of new rows if they have any, and the inputs of the network; and the notes."""
    write(path, columns)
    read = load_data.load_new([path], data.preprocessing, data.heads, labelled="y" in columns)
    inputs = [part.tolist() for part in read.split.gather(np.arange(len(read.split)))]
    return [*(target.tolist() for target in read.split.targets.values()), *inputs], read.notes


@pytest.mark.parametrize(("suffix", "case"), each_once([".csv", ".parquet"], SAME))
def test_spellings_that_look_alike_are_one_class_and_one_category(tmp_path: Path, case: str, suffix: str) -> None:
    labels = ["avería", SAME[case], "no", "no"] * 10
    columns = {"x": list(range(0, 80, 2)), "kind": labels[::-1], "y": labels}
    data = dataset(tmp_path, columns, f"a{suffix}", numeric=["x"])  # type: ignore[arg-type]
    assert data.heads[""].classes == ("avería", "no")
    assert data.preprocessing["categorical"][0]["values"] == ["avería", "no"]
    one, _ = new_rows(data, tmp_path / "one.csv", {"x": [1, 2], "kind": ["avería", "no"], "y": ["no", "avería"]})
    other, notes = new_rows(
        data, tmp_path / f"b{suffix}", {"x": [1, 2], "kind": [SAME[case], "no"], "y": ["no", SAME[case]]}
    )
    assert one == other
    assert not notes


@pytest.mark.parametrize(
    ("suffix", "case"),
    each_once([".csv", ".parquet", ".jsonl"], [case for case in SAME if case != "no-break space at the end"]),
)
def test_spellings_of_a_column_are_one_column(tmp_path: Path, case: str, suffix: str) -> None:
    count = 40
    path = tmp_path / f"a{suffix}"
    columns = {
        SAME[case]: [i % 7 for i in range(count)],
        "y": ["ab"[i % 2] for i in range(count)],
        "z": [0.5, 2.5] * 20,
    }
    write(path, columns)  # type: ignore[arg-type]
    job = {"train": str(path), "target": "y", "features": ["avería", "z"], "categorical": [SAME[case]]}
    data = load(
        JOBS["tabular-classification"].model_validate({"name": "t", "task": "tabular-classification", "data": job})
    )
    assert data.preprocessing["categorical"][0]["name"] == "avería"
    values, _ = new_rows(data, tmp_path / "n.csv", {"avería": [3], "z": [1.5]})
    respelled_values, _ = new_rows(data, tmp_path / "m.csv", {"z": [1.5], SAME[case]: [3]})
    assert values == respelled_values


def test_two_spellings_of_a_column_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, check=saying("several-columns-named-aver")):
        dataset(tmp_path, {"avería": [1, 2], NFD: [1, 2], "y": ["a", "b"]})


def test_spellings_that_may_be_the_same_are_listed_and_stay_apart(tmp_path: Path) -> None:
    labels = ["avería", "AVERÍA", "averia", "in use", "in-use", "ok"] * 10
    data = dataset(tmp_path, {"x": [i % 9 for i in range(60)], "kind": labels, "y": labels[::-1]})
    same = "spellings that are probably the same, and are learned apart: AVERÍA/averia/avería, in use/in-use"
    assert f'"y": {same}' in data.notes
    assert f'"kind": {same}' in data.notes
    assert len(data.heads[""].classes) == 6


CODES = {
    "whole numbers": ["1", "2", "10", "3"],
    "with a point": ["1.0", "2.0", "10.0", "3.0"],
    "both": ["1", "2.0", "10.00", "3"],
}


@pytest.mark.parametrize("new", CODES)
@pytest.mark.parametrize("old", CODES)
def test_codes_are_the_same_with_and_without_a_point(tmp_path: Path, old: str, new: str) -> None:
    columns = {"code": CODES[old] * 10, "x": [0.5, 1.5] * 20, "y": CODES[old][::-1] * 10}
    data = dataset(tmp_path, columns, categorical=["code"])  # type: ignore[arg-type]
    assert data.heads[""].classes == ("1", "2", "3", "10")
    assert data.preprocessing["categorical"][0]["values"] == ["1", "2", "3", "10"]
    one, _ = new_rows(
        data, tmp_path / "one.csv", {"code": CODES["whole numbers"], "x": [1] * 4, "y": ["1", "2", "3", "10"]}
    )
    other, notes = new_rows(
        data, tmp_path / "other.csv", {"code": CODES[new], "x": [1] * 4, "y": ["1", "2.0", "3", "10.0"]}
    )
    assert one == other
    assert not notes


def test_codes_in_a_column_with_a_gap_and_in_floats(tmp_path: Path) -> None:
    """As pandas writes whole numbers with a gap, in CSV and in Parquet."""
    data = dataset(
        tmp_path, {"code": [1, 2, 10, 3] * 10, "x": [0.5, 1.5] * 20, "y": ["a", "b"] * 20}, categorical=["code"]
    )
    plain_values, _ = new_rows(data, tmp_path / "one.csv", {"code": ["1", "2", "10"], "x": [1] * 3})
    gap, notes = new_rows(data, tmp_path / "gap.csv", {"code": ["1.0", "2.0", "10.0", ""], "x": [1] * 4})
    floats, _ = new_rows(data, tmp_path / "f.parquet", {"code": [1.0, 2.0, 10.0, None], "x": [1] * 4})
    assert gap[1][:3] == plain_values[1]
    assert gap == floats
    assert says_each(notes, [get_message("code-empty-rows-never", "gap.csv", 1)])


def test_versions_keep_their_zeros(tmp_path: Path) -> None:
    """1.0 beside 1.5 is no whole number with a gap; 1 in new data is still that category."""
    data = dataset(
        tmp_path,
        {"v": ["1.0", "1.5", "2.0", "2.5"] * 10, "x": [0.5, 1.5] * 20, "y": ["1.0", "1.5"] * 20},
        categorical=["v"],
    )
    assert data.preprocessing["categorical"][0]["values"] == ["1.0", "1.5", "2.0", "2.5"]
    assert data.heads[""].classes == ("1.0", "1.5")
    (targets, _, places), notes = new_rows(data, tmp_path / "n.csv", {"v": ["1", "2"], "x": [1, 1], "y": ["1", "1"]})
    assert places == [[1], [3]]
    assert targets == [0, 0]
    assert not notes


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(["Leak", "leak", "crack"], ["Leak/leak"], id="case"),
        pytest.param(["1", "01", "1.0", "2"], ["01/1/1.0"], id="numbers"),
        pytest.param(["-1", "1"], [], id="signs"),
        pytest.param(["A+", "A-", "A"], [], id="grades"),
        pytest.param(["año", "ano"], ["ano/año"], id="accents"),
        pytest.param(["N. A.", "n. a"], ["N. A./n. a"], id="full stop"),
        pytest.param(["Ａ１", "A1"], ["A1/Ａ１"], id="width"),  # noqa: RUF001 - on purpose
        pytest.param(["straße", "STRASSE"], ["STRASSE/straße"], id="sharp s"),
        pytest.param(["の", "のう", "か", "が"], [], id="Japanese"),
        pytest.param(["a  b", "a_b", "a b"], ["a  b/a b/a_b"], id="spaces"),
    ],
)
def test_which_spellings_are_alike(names: list[str], expected: list[str]) -> None:
    assert spelling.find_similar_names(names) == expected


def test_joiners_within_a_word_stay() -> None:
    family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}"
    assert spelling.clean_text(family) == family
    assert spelling.clean_text("\u200c" + family + "\u200d") == family


TRUTH = {
    "small": ("true", "false"),
    "Python": ("True", "False"),
    "capital": ("TRUE", "FALSE"),
    "mixed": ("True", "FALSE"),
}


@pytest.mark.parametrize("new", [*TRUTH, "Parquet", "JSONL"])
@pytest.mark.parametrize("old", [*TRUTH, "Parquet", "JSONL"])
def test_truth_values_are_the_same_classes_in_every_spelling(tmp_path: Path, old: str, new: str) -> None:
    """pandas writes True into CSV, and other programs true; Parquet has no spelling."""

    def columns(case: str, count: int) -> tuple[str, dict[str, list[Any]]]:
        yes, no = TRUTH.get(case, (True, False))
        suffix = {"Parquet": ".parquet", "JSONL": ".jsonl"}.get(case, ".csv")
        return suffix, {
            "x": [n % 5 for n in range(count)],
            "good": [yes, no, no] * (count // 3),
            "y": [yes, no] * (count // 2),
        }

    suffix, rows = columns(old, 60)
    data = dataset(tmp_path, rows, f"a{suffix}", categorical=["good"])
    assert data.heads[""].classes == ("false", "true")
    suffix, rows = columns(new, 6)
    (targets, _, places), notes = new_rows(data, tmp_path / f"b{suffix}", rows)
    assert targets == [1, 0] * 3
    assert places == [[2], [1], [1]] * 2
    assert not notes


def test_truth_values_beside_other_words_stay_as_written(tmp_path: Path) -> None:
    labels = ["True", "False", "unknown"] * 10
    data = dataset(tmp_path, {"x": [n % 7 for n in range(30)], "y": labels})
    assert data.heads[""].classes == ("False", "True", "unknown")
    (targets, *_), _ = new_rows(data, tmp_path / "b.csv", {"x": [1, 2], "y": ["true", "false"]})
    assert targets == [1, 0]


def test_an_unknown_class_in_other_letters_names_the_one_that_is_alike(tmp_path: Path) -> None:
    data = dataset(tmp_path, {"x": [n % 7 for n in range(40)], "y": ["avería", "ok"] * 20})
    with pytest.raises(DataError, match='did you mean "avería"'):
        new_rows(data, tmp_path / "b.csv", {"x": [1], "y": ["AVERIA"]})
