"""The twelve public sets and their page: a trial of one set, what is read from packages, and when a set passes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import quality, quality_page, quality_sets

BY_NAME = {one.name: one for one in quality_sets.SETS}


def test_there_are_twelve_of_four_kinds() -> None:
    kinds = [one.kind for one in quality_sets.SETS]
    assert {kind: kinds.count(kind) for kind in kinds} == {"table": 4, "text": 4, "picture": 2, "series": 2}
    assert len(BY_NAME) == 12


@pytest.mark.parametrize("name", ["cancer", pytest.param("digits", marks=pytest.mark.nightly)])
def test_a_trial_measures_every_row_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "fetch_packages", lambda folder: None)
    monkeypatch.delenv("DRIVETRAIN_BASELINES", raising=False)
    arguments = [str(tmp_path), "--only", name, "--budgets", "1m", "--seeds", "0", "--smoke"]
    assert quality.main(arguments) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    contenders = ["simple", "default", "linear"] if name == "cancer" else ["simple", "default"]
    assert [row["contender"] for row in rows] == contenders
    assert set(rows[0]["models"]) == {"constant", "linear", "trees"} - ({"trees"} if name == "digits" else set())
    assert 0 < rows[1]["test"]["accuracy"] <= 1
    assert rows[1]["better"] in ("network", "equal", "linear", "trees", "constant")
    page = (tmp_path / "page.md").read_text()
    assert f"| {name} |" in page
    assert " of 1**" in page
    assert quality.main(arguments) == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)


def test_a_contender_that_fails_is_a_row_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "fetch_packages", lambda folder: None)
    arguments = [str(tmp_path), "--only", "cancer", "--budgets", "1s", "--seeds", "0", "--contenders", "default"]
    assert quality.main(arguments) == 1
    assert "within" in json.loads((tmp_path / "rows.jsonl").read_text())["failed"]
    assert quality.main(arguments) == 1
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2


def write_rows(folder: Path, name: str, seed: int) -> dict[str, list[list[str]]]:
    BY_NAME[name].write_files(folder / "packages", seed, folder / f"{seed}")
    files = {part: folder / f"{seed}" / f"{part}.csv" for part in ("train", "test")}
    return {part: [*csv.reader(path.read_text().splitlines())] for part, path in files.items()}


def test_a_seed_divides_all_rows(tmp_path: Path) -> None:
    one, other = (write_rows(tmp_path, "cancer", seed) for seed in (0, 1))
    assert [len(one[part]) - 1 for part in ("train", "test")] == [455, 114]
    assert one["test"] != other["test"]
    assert sorted(one["train"][1:] + one["test"][1:]) == sorted(other["train"][1:] + other["test"][1:])


def test_texts_are_one_of_each_and_of_frequent_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_sets, "FEWEST_TEXTS", 2)
    folder = tmp_path / "usr/share/games/fortunes"
    folder.mkdir(parents=True)
    (folder / "science").write_text("Light\nis fast.\n%\nlight is fast.\n%\nIron rusts.\n%\n")
    (folder / "art").write_text("One.\n%\n")
    (folder / "art.dat").write_bytes(b"\xff")
    columns = quality_sets.read_quotations(tmp_path)
    assert dict(zip(columns["text"], columns["label"], strict=True)) == {
        "light is fast.": "science",
        "Iron rusts.": "science",
    }


def test_series_are_samples_steps_and_channels(tmp_path: Path) -> None:
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"ItalyPowerDemand_{part}.ts").write_text("# a\n@data\n1,2,3:4,5,6:7\n")
    columns = quality_sets.read_power(tmp_path)
    assert columns["x"].tolist() == [[[1, 4], [2, 5], [3, 6]]] * 2
    assert columns["y"].tolist() == ["class 7"] * 2


@pytest.mark.parametrize(
    ("gaps", "says", "passes"),
    [
        ([0.1, -0.2], ["network", "equal"], True),
        ([1.0, -1.5], ["network", "network"], True),
        ([-3.0, 0.0], ["trees", "equal"], True),
        ([-3.0, -1.0], ["trees", "equal"], False),
        ([-3.0], [None], False),
    ],
)
def test_a_set_passes_if_it_is_no_worse_or_the_run_says_so(gaps: list[float], says: list[Any], passes: bool) -> None:
    rows = {seed: {"better": word} for seed, word in enumerate(says)}
    assert quality_page.is_passed(dict(enumerate(gaps)), rows) == passes


def test_the_page_counts_what_is_measured(tmp_path: Path) -> None:
    about = {
        "date": "2026-11-28",
        "cpu": "A",
        "cpus": 2,
        "torch": "2",
        "set": "cancer",
        "seed": 0,
        "seconds": 9,
        "load": 0,
    }
    rows = [
        about | {"row": "a", "contender": "simple", "budget": "", "models": {"linear": {"accuracy": 0.9, "f1": 0.5}}},
        about
        | {
            "row": "b",
            "contender": "default",
            "budget": "1m",
            "test": {"accuracy": 0.89, "f1": 0.7},
            "better": "equal",
        },
        about | {"row": "c", "contender": "linear", "budget": "1m", "failed": "no"},
    ]
    quality_page.write_page(rows, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| cancer |  | 90.0 |  | 89.0 | -1.0 | +20.0 | equal |  |  | 9 | 0.0 |" in page
    assert "**0 of 1**" in page


def test_a_licence_that_the_package_does_not_state_is_not_named() -> None:
    from sklearn.datasets import load_breast_cancer, load_digits

    licenses = {one.name: one.license for one in quality_sets.SETS}
    for name, load in (("cancer", load_breast_cancer), ("digits", load_digits)):
        assert "licen" not in load().DESCR.lower()
        assert licenses[name].startswith("not stated")
