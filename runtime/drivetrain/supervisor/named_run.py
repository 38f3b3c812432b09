"""Finds the run folder that a command line names by path, by its name below runs/, or by its address in a store.

A run in a store is brought to the user's cache, without its checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from drivetrain.errors import Busy, CheckpointError, SpecError, nearest
from drivetrain.hardware import disk_space
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import RemoteAddress, is_remote
from drivetrain.storage.remote_address import parse as parse_address
from drivetrain.supervisor.remote_copy.run_copy import is_small
from drivetrain.system import file_lock
from drivetrain.system.console import say_aside
from drivetrain.system.files import blame_storage, make_folder, write_json
from drivetrain.system.installation import TRAIN_ON_CPU
from drivetrain.system.run_files import JOB_FILE, SWEEP_FILE, RunFiles, refuse_links
from drivetrain.system.units import format_bytes

RUNS = Path("runs")
CACHE_INDEX = ".copied.json"
"""The tags of what was downloaded, so that only what has changed is downloaded again."""
LOCK = ".lock-copied"
LONGEST_DOWNLOAD = 60.0
"""Seconds to wait for another command that downloads the same run."""


def parse(text: str) -> Path | RemoteAddress:
    """The path as written, or the run of that name below runs/ if only that exists; or an address in a store.

    Raises:
        SpecError: for an address that is none of a store.
    """
    if is_remote(text):
        return parse_address(text)
    path, below = Path(text), RUNS / text
    return below if not path.exists() and below.exists() else path


def fetch_local(run: Path | RemoteAddress) -> Path:
    """The folder of a run on this machine; of one in a store, what has changed is downloaded.

    Raises:
        SpecError: if it is no address of a store that can be listed.
        RemoteError: if the store gives no answer.
        CheckpointError: if there is no run at this address.
        StorageError: if the cache cannot be written.
        Busy: if another command downloads it, and takes long.
    """
    if isinstance(run, Path):
        return run
    if not run.writable:
        raise SpecError(
            f"{run} is no folder of an object store", "s3://BUCKET/PATH/RUN, gs://, az://", "name a run there"
        )
    store = ObjectStore(run)
    present_tags = {entry.name: entry.tag for entry in store.objects() if is_small(entry.name)}
    if JOB_FILE not in present_tags:
        runs = [name for name in store.folders() if store.find_head(f"{name}/{JOB_FILE}")]
        raise CheckpointError(
            f"{run}: there is no run",
            f"runs there: {', '.join(runs[-5:])}" if runs else "the address of a run, as `checkpoint.copy_to` made it",
            f"name one: {run / runs[-1]}" if runs else "correct the address",
        )
    folder = disk_space.find_cache_folder() / disk_space.RUNS_FOLDER / run.scheme / run.host / run.path
    make_folder(folder)
    with blame_storage(folder):
        handle = file_lock.acquire(folder / LOCK, LONGEST_DOWNLOAD)
    if handle is None:
        raise Busy(f"{folder}: another command downloads this run", "one at a time", "wait for it")
    with blame_storage(folder), os.fdopen(handle, "rb"):
        tags = RunFiles(folder).read_object(CACHE_INDEX)
        size = 0
        for name, tag in present_tags.items():
            if not tag or tags.get(name) != tag or not (folder / name).is_file():
                store.get_file(name, folder / name)
                size += (folder / name).stat().st_size
        for name in tags.keys() - present_tags.keys():
            (folder / name).unlink(missing_ok=True)
        write_json(folder / CACHE_INDEX, present_tags)
    if size:
        say_aside(f"{run}: {format_bytes(size)} downloaded to {folder}")
    return folder


def is_cached(folder: Path) -> bool:
    """Whether a folder is the copy of a run in a store; it has no checkpoints."""
    return (folder / CACHE_INDEX).is_file()


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
