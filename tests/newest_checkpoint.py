"""Loads the checkpoint from which a run would resume."""

from __future__ import annotations

from pathlib import Path

from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.checkpoints.checkpoint import Loaded


def load_latest(folder: Path) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each damaged one."""
    path, damaged = checkpoint.find_newest(folder)
    return checkpoint.load(path) if path else None, damaged
