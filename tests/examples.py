"""The example jobs of this project, by name: a user's own jobs lie beside them."""

from __future__ import annotations

from tests.paths import ROOT

FOLDER = ROOT / "jobs"
NAMES = ("audio", "digits", "own-model", "patterns", "reports", "series", "table")
JOBS = tuple(FOLDER / f"{name}.yaml" for name in (*NAMES, "streamed"))
