"""The example jobs of this project, by name: a user's own jobs lie beside them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "jobs"
NAMES = ("digits", "own-model", "patterns", "reports", "series", "table")
JOBS = tuple(FOLDER / f"{name}.yaml" for name in NAMES)
