"""Finds the run folder that a command line names by path, or by its name below runs/."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drivetrain.errors import CheckpointError, SpecError, nearest
from drivetrain.storage.remote_address import BadAddress, RemoteAddress, is_remote
from drivetrain.storage.remote_address import parse as parse_address
from drivetrain.supervisor.remote_copy import fetch_run
from drivetrain.system.installation import TRAIN_ON_CPU
from drivetrain.system.run_files import JOB_FILE, SWEEP_FILE, refuse_links

RUNS = Path("runs")


def parse(text: str) -> Path | RemoteAddress:
    """The path as written, or the run of that name below runs/ if only that exists; or an address in a store.

    Raises:
        SpecError: for an address that is none of a store.
    """
    if is_remote(text):
        try:
            return parse_address(text)
        except BadAddress as error:
            raise SpecError(error.given, error.possible, error.action) from None
    path, below = Path(text), RUNS / text
    return below if not path.exists() and below.exists() else path


def fetch_local(run: Path | RemoteAddress) -> Path:
    """The folder of a run on this machine; one in a store is downloaded, without its checkpoints.

    Raises:
        SpecError: for an address that has no runs.
        CheckpointError: if there is no run at the address.
        StorageError: if the store, or the cache, does not answer.
    """
    return fetch_run.update_cached_run(run) if isinstance(run, RemoteAddress) else run


def find_newest_trial(path: Path) -> Path:
    """The trial that was written to last, if the folder is that of a sweep; else the folder.

    Raises:
        CheckpointError: if the sweep has no trial yet.
    """
    if not (path / SWEEP_FILE).exists():
        return path
    if trials := _sort_by_age(path.glob(f"*/{JOB_FILE}")):
        return trials[0]
    raise CheckpointError(f"{path}: this sweep has no trial yet", "a sweep whose first trial has begun", "try again")


def check_exists(path: Path) -> Path:
    """The path, if it exists.

    Raises:
        CheckpointError: if it does not, with the run whose name is most similar; or if a link is in it.
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
    """The run that was written to last; raises CheckpointError if there is none."""
    runs = list_by_age()
    if not runs:
        raise CheckpointError(
            f"no run was given, and there is none in {RUNS.resolve()}",
            "a run folder",
            f"pass one, or train first: `{TRAIN_ON_CPU}`",
        )
    return runs[0]


def list_by_age() -> list[Path]:
    """The run folders below runs/, newest first."""
    trials = (spec for sweep in RUNS.glob(f"*/{SWEEP_FILE}") for spec in sweep.parent.glob(f"*/{JOB_FILE}"))
    return _sort_by_age([*RUNS.glob(f"*/{JOB_FILE}"), *trials])


def _sort_by_age(specs: Iterable[Path]) -> list[Path]:
    try:
        dated = [(path.stat().st_mtime, path) for path in specs]
    except OSError:
        return []
    return [path.parent for _, path in sorted(dated, reverse=True)]
