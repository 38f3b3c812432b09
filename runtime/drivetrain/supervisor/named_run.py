"""Finds the run folder that a command line names by its path or by its name in runs/."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from drivetrain.errors import CheckpointError, SpecError, nearest
from drivetrain.storage.remote_address import BUCKETS, SCHEME
from drivetrain.system.installation import TRAIN_ON_CPU
from drivetrain.system.run_files import JOB_FILE, SWEEP_FILE, refuse_links

RUNS = Path("runs")


def parse(text: str) -> Path:
    """Return the path, or the run of that name in runs/ if only that exists; raises SpecError for an address."""
    if SCHEME.match(text):
        raise SpecError(
            f"{text.rpartition('@')[2]}: a run in a store cannot be read directly",
            "a run folder on this machine",
            "copy it here with the provider's tool, as docs/storage.md shows for s3:// and gs://",
        )
    path, run = Path(text), RUNS / text
    return run if not path.exists() and run.exists() else path


def parse_parent(text: str, *, is_copied: bool = True) -> Path:
    """Return the folder of `--runs`; raises SpecError for an address.

    Args:
        is_copied: whether the command accepts `checkpoint.copy_to`, which the error suggests.
    """
    address = SCHEME.match(text)
    if address:
        action = "name a folder"
        if is_copied and address[1].lower() in BUCKETS:
            action += "; `--set checkpoint.copy_to=ADDRESS` copies its runs to a store"
        raise SpecError("--runs is an address in a store", "a folder on this machine", action)
    return Path(text)


def list_names(prefix: str, **_: object) -> list[str]:
    """List the names in runs/ that begin with a prefix, for completion."""
    return [path.name for path in sorted(RUNS.glob(f"{glob.escape(prefix)}*")) if path.is_dir()]


def find_newest_trial(path: Path) -> Path:
    """Find the most recently written trial of a sweep's folder; return any other folder unchanged.

    Raises:
        CheckpointError: if the sweep has no trial yet.
    """
    if not (path / SWEEP_FILE).exists():
        return path
    trials = _sort_by_age(path.glob(f"*/{JOB_FILE}"))
    if trials:
        return trials[0]
    raise CheckpointError(f"{path}: this sweep has no trial yet", "a sweep whose first trial has begun", "try again")


def check_exists(path: Path) -> Path:
    """Return the path if it exists.

    Raises:
        CheckpointError: if it does not exist (suggests the most similar run), or if it contains a link.
    """
    if path.exists():
        refuse_links(path)
        return path
    names = [run.name for run in list_by_age()]
    listed = (
        f"runs here, newest first: {', '.join(names[:5])}"
        if names
        else f"a run folder; there is none in {RUNS.resolve()}"
    )
    raise CheckpointError(
        f"{path}: there is no such folder",
        listed,
        nearest(path.name, names) or "use a folder that `drivetrain train` created",
    )


def find_newest() -> Path:
    """Find the most recently written run; raises CheckpointError if there is none."""
    runs = list_by_age()
    if not runs:
        raise CheckpointError(
            f"no run was named, and there is none in {RUNS.resolve()}",
            "a run folder",
            f"name one, or train first: `{TRAIN_ON_CPU}`",
        )
    return runs[0]


def list_by_age() -> list[Path]:
    """List the run folders in runs/, newest first."""
    trials = (spec for sweep in RUNS.glob(f"*/{SWEEP_FILE}") for spec in sweep.parent.glob(f"*/{JOB_FILE}"))
    return _sort_by_age([*RUNS.glob(f"*/{JOB_FILE}"), *trials])


def _sort_by_age(specs: Iterable[Path]) -> list[Path]:
    """Return the folders of job files, newest first; empty if one disappears meanwhile."""
    try:
        dated = [(path.stat().st_mtime, path) for path in specs]
    except OSError:
        return []
    return [path.parent for _, path in sorted(dated, reverse=True)]
