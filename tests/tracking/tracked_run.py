"""A run folder that grows, and its copy on a tracking server."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.tracking.run_tracker import open_tracker

SPEC = "name: small\ntrain: {epochs: 2, seed: 0}\nlimits: {cpus: 2.0, gpus: null}\ntrack: {mlflow: ADDRESS}\n"


def make_folder(tmp_path: Path, address: str, rows: int = 30) -> Path:
    run = tmp_path / "runs" / "small-001"
    run.mkdir(parents=True)
    (run / "job.yaml").write_text(SPEC.replace("ADDRESS", address))
    (run / "state.json").write_text(json.dumps({"status": "running", "started": "2026-11-23T10:00:00+00:00"}))
    decision = {"name": "precision", "value": "bf16", "source": "measured", "reason": "1.4x"}
    (run / "plan.json").write_text(json.dumps({"decisions": [decision]}))
    add_steps(run, 1, rows + 1)
    return run


def add_steps(run: Path, first: int, end: int, shift: float = 0.0) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        for step in range(first, end):
            file.write(json.dumps({"step": step, "epoch": 0, "train/loss": 1 / step + shift, "lr": 0.1}) + "\n")


def list_expected(run: Path) -> dict[tuple[str, int], list[str]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        (name, row["step"]): [str(row[name])] for row in rows for name in row if name not in ("step", "epoch", "batch")
    }


def copy_once(run: Path, address: str, *, most: int = 1000) -> None:
    """One process that copies what is there and ends."""
    with open_tracker(run, address) as tracker:
        tracker.tracker.most = most
        tracker.read()
        tracker.send()
        tracker.finish()
