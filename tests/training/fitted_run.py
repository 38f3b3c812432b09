"""Trains the tiny job with options, and reads its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop
from drivetrain.training.run import Run
from drivetrain.training.saver import Saver
from tests.training.hooked_run import SilentProgress


def fit_run(run: Run) -> str:
    """Train an assembled run; why it ended."""
    run.metrics = MetricsLog(run.folder)
    saver = Saver(run)
    saver.save_final()
    try:
        return loop.fit(run, saver, SilentProgress())  # type: ignore[arg-type]
    finally:
        saver.wait()
        run.metrics.close()


def read_rows(folder: Path, key: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if key in row]
