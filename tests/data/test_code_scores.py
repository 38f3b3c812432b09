"""Codes such as -9999 in one of a thousand training cells: a note names the row, and the score is nearly that without them."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data import load_data
from drivetrain.data.scales import format_number
from drivetrain.job import JOBS, Job
from drivetrain.training.evaluation.validation import evaluate
from tests.data.coded_rows import TASKS, Numbers, make_rows, write
from tests.messages import says
from tests.tiny import assemble_plain_run, losses

MODELS = {
    "tabular": {"name": "mlp", "hidden": [16]},
    "series": {"cnn_channels": [8], "lstm_hidden": 8},
    "image": {"name": "small-cnn", "width": 4},
}
ROWS = 3000
STEPS = 400
MOST_LOST = 0.02
"""Of accuracy or r2."""
CASES = [
    (task, column)
    for task, (kind, _, _) in TASKS.items()
    for column in ("a", "n")
    if (column == "n" and kind.endswith("regression")) or (column == "a" and not kind.startswith("image"))
]


def train(task: str, rows: dict[str, Numbers], folder: Path) -> tuple[float, list[str]]:
    """Train for some hundred steps; returns accuracy or r2 on rows without codes, and the notes on the data."""
    kind, file, keys = TASKS[task]
    (folder / "held").mkdir()
    data = {"train": write(folder / file, rows), "validation": write(folder / "held" / file, make_rows(ROWS, seed=1))}
    spec = {"name": "t", "task": kind, "data": {**data, **keys}, "model": MODELS[kind.partition("-")[0]]}
    spec["train"] = {"epochs": 1000, "batch_size": 32, "optimizer": {"name": "adamw", "lr": 5e-3}}
    spec["optimize"] = {"cpu_threads": 1}
    job: Job = JOBS[kind].model_validate(spec)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training_run = assemble_plain_run(job, folder)
    losses(training_run, STEPS)
    metrics, _ = evaluate(training_run)
    return metrics["validation/r2" if kind.endswith("regression") else "validation/accuracy"], load_data.load(job).notes


@cache
def train_clean(task: str, folder: Path) -> float:
    """Train without codes, once for all of them."""
    (folder / task).mkdir()
    return train(task, make_rows(ROWS), folder / task)[0]


@pytest.mark.nightly
@pytest.mark.parametrize("code", [-9999.0, 1e9, 3.4e38])
@pytest.mark.parametrize(("task", "column"), CASES)
def test_a_score_stays_where_one_cell_in_a_thousand_is_a_code(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    task: str,
    column: str,
    code: float,
) -> None:
    expected = train_clean(task, tmp_path_factory.getbasetemp())
    rows = make_rows(ROWS)
    # Of windows and pictures, the label is that of each tenth row.
    coded = random.Random(0).sample(range(9, ROWS, 10), ROWS // 1000)
    rows[column][np.array(coded)] = code
    score, notes = train(task, rows, tmp_path)
    print(f"{task}, {column}, {code:g}: {expected:.4f} without, {score:.4f} with {len(coded)} codes")
    assert says(notes, "code-stand-for-no-value", format_number(code))
    if column == "n" and not task.startswith("table"):
        lost = "a code in a target counts as ten deviations: three of 300 labels cost up to 0.055 of r2"
        request.applymarker(pytest.mark.xfail(reason=lost, strict=False))
    assert abs(score - expected) <= MOST_LOST
