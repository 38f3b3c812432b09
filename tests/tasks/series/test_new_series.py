"""New series in another sampling rate or another unit than those of the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job_spec import data_cells
from tests.axes import each_once
from tests.messages import begins_with, saying
from tests.tasks.series.series_rows import (
    Rows,
    job,
    write_rows,
)

torch.set_num_threads(1)


def make_timed(step: float, count: int = 90, machines: int = 2, form: str = "dates", keep: float = 1.0) -> Rows:
    """Machines whose rows come evenly; of `keep` of the rows."""
    kept = np.flatnonzero(np.random.default_rng(0).random(count) < keep)
    seconds = np.tile(kept * step, machines)
    dates = np.datetime64("2024-05-31T08:30:00", "ms") + (seconds * 1000).astype(int)
    times = {"dates": dates, "numbers": seconds, "ms": (seconds * 1000).astype(int)}
    values = np.random.default_rng(1).normal(size=(2, len(seconds)))
    return {
        "t": times[form],
        "machine": np.repeat([f"m{number}" for number in range(machines)], len(kept)),
        "a": values[0],
        "b": values[1],
        "y": np.where(np.arange(len(seconds)) // 10 % 2, "on", "off"),
    }


@pytest.mark.parametrize(
    ("trained", "new", "answer"),
    [
        ({}, {}, ""),
        ({}, {"keep": 0.8}, ""),  # gaps
        ({}, {"form": "ms"}, ""),
        ({}, {"step": 0.5}, "refused"),
        ({}, {"step": 0.5, "form": "ms"}, "refused"),
        ({}, {"step": 2.0, "keep": 0.95}, "refused"),
        ({"form": "numbers"}, {"step": 3.0, "form": "numbers"}, "refused"),
        ({"form": "numbers"}, {"form": "ms"}, ""),
        ({"keep": 0.5}, {"keep": 0.5}, ""),
        ({"keep": 0.5}, {"step": 8.0}, "said"),
        ({}, {"machines": 3, "step": 1.1}, ""),
    ],
)
def test_another_sampling_rate_is_refused_or_said(
    tmp_path: Path, trained: dict[str, Any], new: dict[str, Any], answer: str
) -> None:
    """With twice the rate the accuracy fell from 0.993 to 0.423, which the column of times shows."""
    trained_path = write_rows(tmp_path, make_timed(**{"step": 1.0, **trained}))
    new_path = write_rows(tmp_path, make_timed(**{"step": 1.0, **new}), "new.csv")
    data = load(job(trained_path, group="machine", features=["a", "b"]))
    stored = json.loads(json.dumps(data.preprocessing))
    for labelled in (False, True):
        if answer == "refused":
            with pytest.raises(DataError, check=saying("series-with-the-step")):
                load_data.load_new([new_path], stored, data.heads, labelled=labelled)
            continue
        notes = load_data.load_new([new_path], stored, data.heads, labelled=labelled).notes
        assert any("has learned speeds" in note for note in notes) == (answer == "said")
    if answer == "refused":
        for read in (load, data_cells.check):
            for key in ("validation", "test") if read is data_cells.check else ("validation",):
                files: dict[str, Any] = {key: str(new_path)}
                refused_job = job(trained_path, group="machine", features=["a", "b"], **files)
                with pytest.raises(DataError, check=saying("series-with-the-step")):
                    read(refused_job)


def test_steps_are_named_without_exponents(tmp_path: Path) -> None:
    """What the message says about resampling can be copied."""
    data = load(job(write_rows(tmp_path, make_timed(2_678_400.0)), group="machine", features=["a", "b"]))
    new_path = write_rows(tmp_path, make_timed(86_400.0), "new.csv")
    with pytest.raises(
        DataError,
        match=r"steps by 86400 s.*stepped by 2678000 s.*\n.*\n.*\.resample\('2678400s'\).*texts by \.resample\('2678400s'\)\.first",
    ):
        load_data.load_new([new_path], data.preprocessing, data.heads, labelled=False)


def test_one_series_of_another_rate_is_named(tmp_path: Path) -> None:
    data = load(job(write_rows(tmp_path, make_timed(1.0)), group="machine", features=["a", "b"]))
    slow, fast = make_timed(1.0, machines=3), make_timed(0.5, machines=1)
    rows = {
        name: np.concatenate([slow[name], np.char.add("x", fast[name]) if name == "machine" else fast[name]])
        for name in slow
    }
    with pytest.raises(DataError, check=saying("in-series-first-row", 1, 4, 271)):
        load_data.load_new([write_rows(tmp_path, rows, "new.csv")], data.preprocessing, data.heads, labelled=False)


def test_a_file_of_several_rates_can_be_predicted_by_its_own_model(tmp_path: Path) -> None:
    slow, fast = make_timed(1.0, machines=20), make_timed(4.0, machines=1)
    rows = {
        name: np.concatenate([slow[name], np.char.add("x", fast[name]) if name == "machine" else fast[name]])
        for name in slow
    }
    path = write_rows(tmp_path, rows)
    data = load(job(path, group="machine", features=["a", "b"]))
    new = load_data.load_new([path], data.preprocessing, data.heads, labelled=False)
    assert any("1 of 21 series" in note for note in new.notes)


UNITS: dict[str, Any] = {
    "thousandfold": lambda values: values * 1000,
    "a thousandth": lambda values: values / 1000,
    "Fahrenheit": lambda values: values * 9 / 5 + 32,
    "the same": lambda values: values,
    "a little more": lambda values: values * 1.2,
}


@pytest.mark.parametrize(("unit", "center"), each_once(UNITS, [0.0, 20.0]))
def test_a_channel_in_another_unit_is_named(tmp_path: Path, unit: str, center: float) -> None:
    """In Fahrenheit the accuracy fell from 0.996 to 0.518, without a word."""
    rows = make_timed(1.0, count=200) | {"a": np.random.default_rng(2).normal(center, 3, 400)}
    data = load(job(write_rows(tmp_path, rows), group="machine", features=["a", "b"]))
    new_path = write_rows(tmp_path, rows | {"a": UNITS[unit](rows["a"])}, "new.csv")
    notes = load_data.load_new([new_path], data.preprocessing, data.heads, labelled=False).notes
    found = [note for note in notes if "another unit" in note]
    expected = unit in ("thousandfold", "a thousandth", "Fahrenheit")
    assert len(found) == expected, notes
    assert not found or begins_with(found[0], "new-csv-a-is", "new.csv")
