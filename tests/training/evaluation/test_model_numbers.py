"""Every number next to a model belongs to it: in the report, the card, result.json and the output of `evaluate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drivetrain.cli import main
from drivetrain.system.files import read_json

SPEC = """
name: a
task: tabular-regression
data: {train: train.csv, target: y, validation: held.csv}
model: {name: mlp, hidden: [64, 64]}
train: {epochs: 12, batch_size: 8, optimizer: {name: adamw, lr: 0.03}}
optimize: {measure: off, cpu_threads: 1}
"""


def test_tiles_card_and_report_show_the_delivered_weights(tmp_path: Path) -> None:
    """They showed the metrics of the last epoch next to the weights of the best one."""
    generator = np.random.default_rng(0)
    for name, count in (("train", 40), ("held", 40)):
        x = generator.normal(size=(count, 3))
        y = 50 * x[:, 0] + 40 * generator.normal(size=count)
        rows = "\n".join(f"{a:.4f},{b:.4f},{c:.4f},{d:.4f}" for (a, b, c), d in zip(x, y, strict=True))
        (tmp_path / f"{name}.csv").write_text(f"p,q,r,y\n{rows}\n")
    (tmp_path / "job.yaml").write_text(SPEC)
    assert main.main(["train", str(tmp_path / "job.yaml"), "--runs", str(tmp_path / "runs")]) == 0
    run = tmp_path / "runs" / "a-001"
    result = read_json(run / "result.json")
    metrics, last = result["best"]["metrics"], result["last"]["validation/rmse"]
    assert last > metrics["validation/rmse"], "this test needs a last epoch that is not the best one"

    held_out_file, output = str(tmp_path / "held.csv"), tmp_path / "evaluation"
    assert main.main(["evaluate", str(run), "--data", held_out_file, "--output", str(output)]) == 0
    evaluated_metrics = read_json(output / "metrics.json")["metrics"]
    assert {
        f"validation/{name}": pytest.approx(value, rel=1e-5) for name, value in evaluated_metrics.items()
    } == metrics
    for page in ("report.md", "report.html"):
        text = (run / page).read_text()
        assert f"{metrics['validation/rmse']:.4g}" in text, page
        assert f"{last:.4g}" not in text.split("Curves")[0].split("curves")[0], page
