"""CSV for spreadsheets: names that begin as a formula are text, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from drivetrain.inference import evaluation_folder, predict
from drivetrain.inference.predictions import Answer
from drivetrain.report.confusion import Confusion
from drivetrain.system import printable

EVIL = "=cmd|' /C calc'!A0"


@pytest.mark.parametrize(
    "text",
    [
        EVIL,
        "+1+2",
        "-1+cmd()",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\N{FULLWIDTH EQUALS SIGN}1",
        "--",
        " =1",
        "\N{NO-BREAK SPACE} @SUM(A1)",
        "\tcat",
    ],
)
def test_a_formula_becomes_text(text: str) -> None:
    assert printable.escape_cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", [-1, -1.5, 0.25, None, "-1", "+2.5", "-1e-05", "-.5", "cat", "a=b", "", "1-2", "'quoted", " -1", " a"]
)
def test_everything_else_stays(value: object) -> None:
    assert printable.escape_cell(value) == value


def write_and_read(answers: list[tuple[str, dict[str, Answer]]]) -> list[list[str]]:
    file = io.StringIO(newline="")
    predict._write_csv(answers, file)
    return list(csv.reader(io.StringIO(file.getvalue(), newline="")))


def test_predictions() -> None:
    """The names of samples, of classes and of columns come with the data."""
    answer = {"": {"prediction": EVIL, "probability": 0.5, "probabilities": {EVIL: 0.5, "b": 0.5}}}
    assert write_and_read([("@a.png", answer)]) == [
        ["sample", "prediction", "probability", f"probabilities.{EVIL}", "probabilities.b"],
        ["'@a.png", f"'{EVIL}", "0.5", "0.5", "0.5"],
    ]
    assert write_and_read([("a", {"=h": {"prediction": -1.5}})]) == [["sample", "'=h.prediction"], ["a", "-1.5"]]


def test_each_of_several_classes() -> None:
    """Where a semicolon separates cells, the second class begins one."""
    answer = {"": {"prediction": ["a", EVIL], "probability": [0.5, 0.75]}}
    assert write_and_read([("a", answer)])[1] == ["a", f"a;'{EVIL}", "0.5;0.75"]


def test_json_lines_hold_everything_as_it_is() -> None:
    file = io.StringIO()
    predict._write_lines([("a", {"": {"prediction": EVIL}})], file)
    assert EVIL in file.getvalue()
    assert "'=" not in file.getvalue()


def test_the_confusion_matrix(tmp_path: Path) -> None:
    evaluation_folder._write_matrix(Confusion("", (EVIL, "-1"), ((1, 2), (3, 4))), tmp_path / "confusion.csv")
    rows = list(csv.reader((tmp_path / "confusion.csv").read_text().splitlines()))
    assert rows == [["truth", f"'{EVIL}", "-1"], [f"'{EVIL}", "1", "2"], ["-1", "3", "4"]]
