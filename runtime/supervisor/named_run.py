"""Finds the run folder that a command line names by path, or by its name below runs/."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import CheckpointError, nearest
from runtime.system.installation import TRAIN_CPU

RUNS = Path("runs")


def parse(text: str) -> Path:
    """The path as written, or the run of that name below runs/ if only that exists."""
    path, below = Path(text), RUNS / text
    return below if not path.exists() and below.exists() else path


def existing(path: Path) -> Path:
    """The path, if it exists.

    Raises:
        CheckpointError: if it does not, with the run whose name is most similar.
    """
    if path.exists():
        return path
    known = [run.name for run in by_age()]
    here = (
        f"runs here, newest first: {', '.join(known[:5])}"
        if known
        else f"a run folder; there is none in {RUNS.resolve()}"
    )
    raise CheckpointError(
        f"{path}: there is no such folder",
        here,
        nearest(path.name, known) or "use a folder that `drivetrain train` created",
    )


def newest() -> Path:
    """The run that was written to last.

    Raises:
        CheckpointError: if there is none.
    """
    known = by_age()
    if not known:
        raise CheckpointError(
            f"no run was given, and there is none in {RUNS.resolve()}",
            "a run folder",
            f"pass one, or train first: `{TRAIN_CPU}`",
        )
    return known[0]


def by_age() -> list[Path]:
    """The run folders below runs/, newest first."""
    try:
        found = [(path.stat().st_mtime, path) for path in RUNS.glob("*/job.yaml")]
    except OSError:
        return []
    return [path.parent for _, path in sorted(found, reverse=True)]
