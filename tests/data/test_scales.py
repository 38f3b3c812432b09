"""Scales of numbers: codes such as -9999 are found, honest numbers are not called codes, and the scale of others is as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data import load_data
from drivetrain.data.custom import custom_data
from drivetrain.data.custom.data_sources import DataSource
from drivetrain.data.scales import fit_scale, format_number
from drivetrain.job.custom import CustomJob
from drivetrain.tasks import JOBS
from tests.axes import each_once
from tests.data.coded_rows import TASKS, Numbers, make_rows, write
from tests.messages import omits, says

Draw = Callable[[np.random.Generator, int], Numbers]
HONEST: dict[str, Draw] = {
    "normal": lambda draw, n: draw.normal(size=n),
    "uniform": lambda draw, n: draw.random(n),
    "log-normal": lambda draw, n: draw.lognormal(0, 1, n),
    "wide log-normal": lambda draw, n: draw.lognormal(0, 2, n),
    "Pareto": lambda draw, n: draw.pareto(1.5, n),
    "Student": lambda draw, n: draw.standard_t(3, n),
    "counts": lambda draw, n: draw.poisson(3, n),
    "uneven counts": lambda draw, n: draw.negative_binomial(0.3, 0.01, n),
    "rare counts": lambda draw, n: draw.poisson(0.02, n),
    "mostly zero": lambda draw, n: np.where(draw.random(n) < 0.95, 0, draw.lognormal(5, 1.5, n)),
    "one-hot": lambda draw, n: draw.random(n) < 0.002,
    "bimodal": lambda draw, n: np.where(draw.random(n) < 0.5, draw.normal(0, 1, n), draw.normal(1000, 1, n)),
    "constant": lambda draw, n: np.full(n, 7.0),
    "constant but for a row": lambda draw, n: np.where(np.arange(n) == 5, 9.0, 7.0),
    "many magnitudes": lambda draw, n: 10 ** draw.uniform(-20, 0, n),
    "money": lambda draw, n: draw.lognormal(10, 1.5, n).round(-3),
    "years": lambda draw, n: draw.integers(1950, 2025, n),
    "counts, one of 99": lambda draw, n: np.where(np.arange(n) == 7, 99, draw.integers(0, 21, n)),
    "counts, one of 999": lambda draw, n: np.where(np.arange(n) == 7, 999, draw.integers(0, 191, n)),
    "losses, one of -99": lambda draw, n: np.where(np.arange(n) == 7, -99, -draw.integers(0, 21, n)),
    "percent": lambda draw, n: draw.choice([0, 10, 25, 50, 75, 90, 99, 100], n),
    "times, some 0": lambda draw, n: np.where(draw.random(n) < 0.1, 0, draw.uniform(1.69e9, 1.70e9, n)),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_numbers_are_no_codes_and_keep_their_scale(name: str) -> None:
    for seed in range(10):
        for count in (100, 1000):
            values = HONEST[name](np.random.default_rng(seed), count).astype(np.float64)
            scale = fit_scale(values)
            assert not scale.find_codes(values).any()
            assert not scale.note_codes(name, values, str)
            expected = (values.mean(), values.std() or 1.0) if np.ptp(values) else (values[0], 1.0)
            assert (scale.mean, scale.std) == expected


@pytest.mark.parametrize(
    ("code", "name"),
    each_once(
        [-9999, -999.9, 99999, 1e9, 2**31 - 1, 3.4e38, 123456.7],
        ["normal", "uniform", "log-normal", "counts", "one-hot", "many magnitudes"],
    ),
)
def test_one_code_in_a_thousand_is_named_and_changes_no_other_number(name: str, code: float) -> None:
    values = HONEST[name](np.random.default_rng(0), 1000).astype(np.float64)
    clean = np.delete(values, 77)
    values[77] = code
    scale = fit_scale(values)
    if name == "one-hot" and code == 123456.7:
        return  # of few different numbers, only what is written like a code is one
    assert np.flatnonzero(scale.find_codes(values)).tolist() == [77]
    assert (scale.mean, scale.std) == (clean.mean(), clean.std())
    scaled = scale.scale(values)
    is_clipped = code != 123456.7  # which is not written like a code
    assert (np.abs(scaled[77]) == pytest.approx(scale.limit)) == is_clipped
    np.testing.assert_array_equal(np.delete(scaled, 77), ((clean - clean.mean()) / clean.std()).astype(np.float32))
    (note,) = scale.note_codes("a", values, lambda row: f"row {row}")
    assert f"{format_number(code)} in row 77" in note


COLUMNS = {"classes": ("a",), "numbers": ("a", "n"), "pictures, numbers": ("n",)}
CASES = [(task, column) for task in TASKS for column in COLUMNS.get(task, COLUMNS[task.rpartition(" ")[2]])]


@pytest.mark.parametrize(("task", "column"), CASES)
@pytest.mark.parametrize("code", [-9999.0, 1e9, 3.4e38])
def test_a_code_in_any_task_is_named_with_its_row_and_the_cure_works(
    tmp_path: Path, task: str, column: str, code: float
) -> None:
    """Of 12,000 cells three ruined a channel; one of 600 targets made epoch 2 of 15 the best."""
    kind, file, keys = TASKS[task]
    row = 509  # the last of a window
    clean = make_rows()
    rows = {name: cells.copy() for name, cells in clean.items()}
    rows[column][row] = code

    def load(cells: dict[str, Numbers], **more: object) -> Any:
        path = write(tmp_path / file, cells)
        spec = {"name": "t", "task": kind, "data": {"train": path, "validation": 0.2, **keys, **more}}
        return load_data.load(JOBS[kind].model_validate(spec))

    expected, data = load(clean), load(rows)
    assert omits(expected.notes, "code-stand-for-no-value", format_number(code))
    assert says(data.notes, "code-stand-for-no-value", format_number(code))
    (note,) = [note for note in data.notes if "if they stand for no value" in note]
    array_name = {"a": "x", "n": "y"}[column]
    expected_name = f"{array_name}[50]" if file.endswith("npz") else f"row {row + 1}"
    assert ("-50.png" if file == "pictures.csv" else expected_name) in note
    for split in (data.train, data.validation):
        inputs = split.gather(np.arange(len(split)))[0]
        assert inputs.dtype == torch.uint8 or inputs.abs().max() <= 10.01
    if not expected.heads[""].classes:
        assert data.heads[""].std == pytest.approx(expected.heads[""].std, rel=0.05)
    cured = load(rows, missing=[format_number(code)])
    assert omits(cured.notes, "code-stand-for-no-value", format_number(code))


@pytest.mark.parametrize("code", [99.0, 999.0, -99.0])
def test_small_codes_far_from_small_counts(code: float) -> None:
    values = np.append(np.random.default_rng(0).integers(0, 10, 300), [code, code]).astype(np.float64)
    assert fit_scale(values).find_codes(values).sum() == 2


@pytest.mark.parametrize(("is_file", "task"), each_once([False, True], [task for task in TASKS if "numbers" in task]))
def test_a_code_in_a_validation_target_counts_in_no_score(tmp_path: Path, task: str, *, is_file: bool) -> None:
    """One of 600 chose epoch 4 of 15, since the errors of all others were small beside its own."""
    kind, file, keys = TASKS[task]
    folder = tmp_path / "new" if is_file else tmp_path
    folder.mkdir(exist_ok=True)

    def load(rows: dict[str, Numbers]) -> Any:
        path = write(tmp_path / file, make_rows() if is_file else rows)
        validation = write(folder / file, rows) if is_file else 0.2
        spec = {"name": "t", "task": kind, "data": {"train": path, "validation": validation, **keys}}
        return load_data.load(JOBS[kind].model_validate(spec))

    rows = make_rows()
    expected = load(rows)
    number = int(re.findall(r"\d+", expected.validation.title(3))[-1])
    rows["n"][10 * number + 9 if file in ("numbers.npz", "pictures.csv") else number - 1] = 1e9
    data = load(rows)
    assert len(data.validation) == len(expected.validation) - 1
    assert len(data.train) == len(expected.train)
    assert data.validation.targets[""].abs().max() < 9
    assert says(data.notes, "validation-code-no-score", 1)


@pytest.mark.parametrize("where", ["input", "target"])
def test_a_code_in_arrays_of_a_program_is_named(where: str) -> None:
    """They are not scaled, so the network gets them."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(500, 2, generator=draw), torch.randn(500, generator=draw)
    (x[:, 1] if where == "input" else y)[77] = -9999.0
    spec = {"name": "t", "task": "custom", "train": {"loss": {"name": "mse"}}}
    fields = {"data": {"file": "a.py", "factory": "f"}, "model": {"file": "a.py", "factory": "m"}}
    custom_job = JOBS["custom"].model_validate(spec | fields)
    assert isinstance(custom_job, CustomJob)
    sources = DataSource("training", (x, y)), DataSource("validation", (x[:50], y[:50]))
    built = custom_data.build_dataset(custom_job, sources, None)
    assert says(built.notes, "training-in-sample", {"input": "input 0[1]", "target": "target"}[where])
