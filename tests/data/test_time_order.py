"""Rows in the order of time that are divided at random: said in the draft and in the log, and no ground for advice."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.cli import main
from drivetrain.data.load_data import load
from drivetrain.job import FORECASTING
from drivetrain.job_spec import load_job as job_spec
from tests.axes import each_once
from tests.messages import get_message, says

N = 200
DAYS = [datetime(1988, 3, 29, tzinfo=UTC) + timedelta(days=n) for n in range(N)]
SPEC = "name: t\ntask: tabular-regression\ndata: {train: %s, target: y, validation: 0.2, ignore: [when]%s}\n"
FORMS: dict[str, Callable[[datetime], Any]] = {
    "19880329": lambda day: int(day.strftime("%Y%m%d")),
    "1988/03/29": lambda day: day.strftime("%Y/%m/%d"),
    "Mar 29 1988": lambda day: day.strftime("%b %d %Y"),
    "29.03.1988": lambda day: day.strftime("%d.%m.%Y"),
    "1988/03/29 00:00": lambda day: day.strftime("%Y/%m/%d %H:%M"),
    "with a zone": lambda day: day.isoformat(),
    "seconds": lambda day: int(day.timestamp()),
    "milliseconds": lambda day: int(day.timestamp()) * 1000,
}


def write(path: Path, times: list[Any], name: str = "when") -> Path:
    """A file with these times, a number that follows them, and a target."""
    rng = np.random.default_rng(0)
    columns = {
        name: times,
        "x": rng.normal(size=len(times)).round(3).tolist(),
        "y": rng.normal(size=len(times)).round(3).tolist(),
    }
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(
                json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in zip(*columns.values(), strict=True)
            )
        )
    else:
        path.write_text(
            "\n".join([f"{name},x,y", *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]) + "\n"
        )
    return path


def notes(path: Path, options: str = "") -> list[str]:
    job = path.with_suffix(".yaml")
    job.write_text(SPEC % (path.name, options))
    return list(load(job_spec.load(job)).notes)


@pytest.mark.parametrize(("suffix", "form"), each_once([".csv", ".jsonl", ".parquet"], FORMS))
def test_rows_in_the_order_of_time_are_said_to_be_divided_at_random(tmp_path: Path, form: str, suffix: str) -> None:
    path = write(tmp_path / f"a{suffix}", [FORMS[form](day) for day in DAYS])
    assert says(notes(path), "rows-order-random", "when")
    assert (
        main.main(
            ["init", str(path), "--task", "tabular-regression", "--target", "y", "--output", str(tmp_path / "i.yaml")]
        )
        == 0
    )
    draft = (tmp_path / "i.yaml").read_text()
    assert says(draft, "rows-order-random", "when")
    assert "ignore: [when]" in draft, "a column of times is no number"


@pytest.mark.parametrize(
    ("order", "is_ordered"),
    [(slice(None, None, -1), True), (np.r_[100:200, 0:100], True), (np.random.default_rng(0).permutation(N), False)],
)
def test_what_is_an_order(tmp_path: Path, order: Any, is_ordered: bool) -> None:
    """Rows that fall in time have one, and several series after each other; shuffled rows have none."""
    path = write(tmp_path / "a.csv", np.array([FORMS["1988/03/29"](day) for day in DAYS])[order].tolist())
    assert any(get_message("rows-order-random", "when") in note for note in notes(path)) == is_ordered


@pytest.mark.parametrize("name", ["population", "revenue", "visitors"])
def test_sorted_numbers_are_no_times(tmp_path: Path, name: str) -> None:
    """A table that is sorted by a large number has no order in time, and the number stays a feature."""
    path = write(tmp_path / "a.csv", [200_000_000 + n * n * 1_000 for n in range(N)], name)
    draft = tmp_path / "i.yaml"
    assert main.main(["init", str(path), "--target", "y", "--output", str(draft)]) == 0
    assert "RANDOM" not in draft.read_text()
    assert "ignore" not in draft.read_text()
    assert not any("RANDOM" in note for note in load(job_spec.load(draft)).notes)


def test_a_split_by_time_needs_no_note(tmp_path: Path) -> None:
    times = [FORMS["19880329"](day) for day in DAYS]
    write(tmp_path / "last.csv", times[150:])
    write(tmp_path / "a.csv", times[:150])
    (tmp_path / "a.yaml").write_text((SPEC % ("a.csv", "")).replace("0.2", "last.csv"))
    assert not any("RANDOM" in note for note in load(job_spec.load(tmp_path / "a.yaml")).notes)


@pytest.mark.parametrize("arguments", [["--task", "forecasting"], []])
def test_forecasting_is_said_not_to_be_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("day,sales\n" + "".join(f"{day:%Y-%m-%d},{n * 7 % 31}\n" for n, day in enumerate(DAYS)))
    assert main.main(["init", str(path), *arguments]) in (2, 3)
    assert FORECASTING in capsys.readouterr().err


def test_a_job_that_forecasts_is_told_what_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("name: a\ntask: time-series-forecasting\ndata: {train: a.csv}\n")
    assert main.main(["validate", str(tmp_path / "a.yaml")]) == 2
    assert FORECASTING in capsys.readouterr().err
